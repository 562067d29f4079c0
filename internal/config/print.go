package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/goccy/go-yaml"
)

// Masked stands where a secret is.
const Masked = "********"

// YAML is the effective configuration as a file that Load reads again, secrets
// masked.
func (c *Config) YAML() ([]byte, error) {
	out, err := yaml.MarshalWithOptions(c.document(), yaml.IndentSequence(true))
	if err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	return out, nil
}

// JSON is the same document as JSON.
func (c *Config) JSON() ([]byte, error) {
	text, err := c.YAML()
	if err != nil {
		return nil, err
	}
	out, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, fmt.Errorf("write the configuration as JSON: %w", err)
	}
	return out, nil
}

func (c *Config) document() yaml.MapSlice {
	var doc yaml.MapSlice
	add := func(to *yaml.MapSlice, key string, value any) {
		*to = append(*to, yaml.MapItem{Key: key, Value: value})
	}
	for _, s := range settings() {
		words := s.get(c)
		switch {
		case s.elsewhere && (len(words) == 0 || slices.Contains([]string{"", "0", "0s", "false"}, words[0])):
		case s.key == keyQueues:
			add(&doc, s.key, c.queueDocument())
		case s.list:
			add(&doc, s.key, words)
		case words[0] == "":
		case s.secret:
			add(&doc, s.key, Masked)
		default:
			add(&doc, s.key, plain(words[0]))
		}
	}
	var profiles yaml.MapSlice
	for _, name := range c.ProfileNames() {
		add(&profiles, name, c.Profiles[name].document())
	}
	add(&doc, keyProfiles, profiles)
	return doc
}

// ProfileNames are the names of all profiles, sorted.
func (c *Config) ProfileNames() []string {
	return slices.Sorted(maps.Keys(c.Profiles))
}

func (c *Config) queueDocument() []yaml.MapSlice {
	var list []yaml.MapSlice
	for _, q := range c.Queues {
		list = append(list, yaml.MapSlice{
			{Key: "name", Value: q.Name}, {Key: "weight", Value: q.Weight}, {Key: "concurrency", Value: q.Concurrency},
		})
	}
	return list
}

func (p Profile) document() yaml.MapSlice {
	doc := yaml.MapSlice{{Key: "provider", Value: p.Provider}}
	if p.Root != "" {
		doc = append(doc, yaml.MapItem{Key: "root", Value: p.Root})
	}
	if p.Shape != "" {
		doc = append(doc, yaml.MapItem{Key: "shape", Value: p.Shape})
	}
	return append(doc,
		yaml.MapItem{Key: "reuse", Value: p.Reuse},
		yaml.MapItem{Key: "warm", Value: p.Warm},
		yaml.MapItem{Key: "max_uses", Value: p.MaxUses},
		yaml.MapItem{Key: "max_age", Value: FormatDuration(p.MaxAge)},
		yaml.MapItem{Key: "idle_ttl", Value: FormatDuration(p.IdleTTL)},
		yaml.MapItem{Key: "limits", Value: yaml.MapSlice{
			{Key: "default", Value: p.Default.document()}, {Key: "max", Value: p.Max.document()},
		}})
}

func (l Limits) document() yaml.MapSlice {
	var doc yaml.MapSlice
	for _, f := range limits() {
		if n := *f.at(&l); n != 0 {
			doc = append(doc, yaml.MapItem{Key: f.key, Value: plain(f.write(n))})
		}
	}
	return doc
}

// plain makes numbers and truth values of their texts, so that they print
// without quotes.
func plain(text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && strconv.FormatInt(n, 10) == text {
		return n
	}
	if text == "true" || text == "false" {
		return text == "true"
	}
	return text
}
