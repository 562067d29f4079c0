package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The oldest server that has what the streams need: per-message TTL (2.11) and
// atomic batch publish (2.12).
const (
	minServerMajor = 2
	minServerMinor = 12
)

// accountInfoTimeout bounds the question whether JetStream is on. A user
// without the permission to ask gets no answer, so it is short.
const accountInfoTimeout = 2 * time.Second

// JetStream API error codes (nats-server, server/errors.json).
const (
	codeClusterNotAvail   = 10008
	codeConsumerNotFound  = 10014
	codeInsufficient      = 10023
	codeNotFound          = 10037
	codeNotEnabledAccount = 10039
	codeStorageExceeded   = 10047
	codeMessageTooBig     = 10054
	codeStreamNotFound    = 10059
	codeSubjectOverlap    = 10065
	codeWrongLastSeq      = 10071
	codeNotEnabled        = 10076
	codeStoreFailed       = 10077
	codeHeaderTooBig      = 10097
	codeUnfilteredTaken   = 10099
	codeFilterTaken       = 10100
	codeWrongLastSeqConst = 10164
	codeNoBatches         = 10174
	codeBatchIncomplete   = 10176
	codeBatchesInFlight   = 10210
)

func checkServer(ctx context.Context, nc *nats.Conn, api, name string) error {
	version := nc.ConnectedServerVersion()
	if !versionAtLeast(version, minServerMajor, minServerMinor) {
		return fmt.Errorf("nats-server at %s is version %q, Sallyport needs %d.%d or later: upgrade the server",
			name, version, minServerMajor, minServerMinor)
	}
	if !nc.HeadersSupported() {
		return fmt.Errorf("nats-server at %s does not speak headers: remove no_header_support from its configuration", name)
	}
	ctx, cancel := context.WithTimeout(ctx, accountInfoTimeout)
	defer cancel()
	msg, err := nc.RequestWithContext(ctx, api+".INFO", nil)
	if errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("nats-server at %s answers no JetStream request (%s.INFO): enable JetStream (`jetstream {}` in its configuration, or -js), or check the JetStream domain", name, api)
	}
	silent := errors.Is(ctx.Err(), context.DeadlineExceeded)
	if err != nil && !silent {
		return fmt.Errorf("ask nats-server at %s for JetStream: %w", name, err)
	}
	if msg == nil {
		// Silence is what a missing permission looks like; the streams' check
		// follows and says more.
		return nil
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &answer); err != nil {
		return fmt.Errorf("nats-server at %s: JetStream answer: %w", name, err)
	}
	if answer.Error == nil {
		return nil
	}
	switch answer.Error.ErrorCode {
	case codeNotEnabled:
		return fmt.Errorf("JetStream is not enabled on nats-server at %s: add `jetstream {}` to its configuration or start it with -js", name)
	case codeNotEnabledAccount:
		return fmt.Errorf("JetStream is not enabled for this account on nats-server at %s: add `jetstream: enabled` to the account", name)
	default:
		return fmt.Errorf("JetStream on nats-server at %s: %w", name, answer.Error)
	}
}

// versionAtLeast reads the first two numbers of a version such as
// "2.15.3-beta.1"; one that cannot be read is too old.
func versionAtLeast(version string, major, minor int) bool {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return false
	}
	gotMajor, err := strconv.Atoi(parts[0])
	if err != nil {
		return false
	}
	gotMinor, err := strconv.Atoi(parts[1])
	if err != nil {
		return false
	}
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}

// redact hides passwords and tokens in a list of server URLs.
func redact(servers string) string {
	list := strings.Split(servers, ",")
	for i, s := range list {
		s = strings.TrimSpace(s)
		if u, err := url.Parse(s); err == nil {
			if _, ok := u.User.Password(); !ok && u.User != nil {
				u.User = url.User("xxxxx") // a lone user is a token
			}
			s = u.Redacted()
		} else if at := strings.LastIndexByte(s, '@'); at >= 0 {
			s = "xxxxx" + s[at:]
		}
		list[i] = s
	}
	return strings.Join(list, ", ")
}

// deniedSubject takes the subject out of the server's words: Permissions
// Violation for Publish to "a.b".
func deniedSubject(message string) string {
	_, rest, ok := strings.Cut(message, `"`)
	if !ok {
		return ""
	}
	subject, _, _ := strings.Cut(rest, `"`)
	return subject
}
