package config

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var errNotConfig = errors.New("not a configuration file")

// ParseDuration reads a duration as Go writes it (10s, 1h30m), and days: 7d.
// It is never negative.
func ParseDuration(text string) (time.Duration, error) {
	wrong := errors.New("is not a duration: write a number with a unit, like 500ms, 10s, 5m, 1h or 7d")
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, wrong
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, wrong
	}
	if d < 0 {
		return 0, errors.New("is negative")
	}
	return d, nil
}

// FormatDuration writes d as ParseDuration reads it, without needless zeros.
func FormatDuration(d time.Duration) string {
	if d > 0 && d%(24*time.Hour) == 0 {
		return strconv.FormatInt(int64(d/(24*time.Hour)), 10) + "d"
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// ParseSize reads a number of bytes: 4096, 64KiB, 512MiB, 4GiB, 1TiB. Only the
// powers of 1024 are units, so that nobody has to guess.
func ParseSize(text string) (int64, error) {
	number, unit := text, int64(1)
	for _, u := range sizeUnits() {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			number, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case err != nil:
		return 0, errors.New("is not a size: write bytes or a number with KiB, MiB or GiB, like 64MiB")
	case n < 0:
		return 0, errors.New("is negative")
	case n > math.MaxInt64/unit:
		return 0, errors.New("is too large")
	}
	return n * unit, nil
}

// FormatSize writes n as ParseSize reads it, in the greatest unit that is exact.
func FormatSize(n int64) string {
	for _, u := range sizeUnits() {
		if n != 0 && u.bytes > 1 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

type sizeUnit struct {
	name  string
	bytes int64
}

func sizeUnits() []sizeUnit {
	return []sizeUnit{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}
}

// parseCount reads a whole number between least and most.
func parseCount(text string, least, most int64) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("is not a whole number from %d to %d", least, most)
	}
	return n, nil
}

// checkToken holds for tenants, queues, profiles and prefixes: one NATS token.
func checkToken(text string) error {
	if !regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`).MatchString(text) {
		return errors.New("is not a name: 1 to 64 of the characters A-Z a-z 0-9 _ -")
	}
	return nil
}
