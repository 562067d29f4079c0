package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// DecodeRequest reads and validates the body of a request. It never panics,
// takes time and memory in proportion to the body, and refuses a body longer than
// MaxRequestBytes unread. The request is nil exactly when the Invalid is not.
//
// It is strict: an unknown, repeated, wrongly typed or null field is refused by
// its path. A version other than 1 is ReasonVersion, whatever else stands there.
func DecodeRequest(body []byte) (*Request, *Invalid) {
	request := new(Request)
	if bad := (document{name: "request", maxBytes: MaxRequestBytes}).decode(body, request); bad != nil {
		return nil, bad
	}
	if bad := request.Validate(); bad != nil {
		return nil, bad
	}
	return request, nil
}

// EncodeRequest is the canonical body of r: fields in the order of the type,
// maps by key, nothing that is absent. An error is an *Invalid where r is not
// valid. V may be zero.
func EncodeRequest(r *Request) ([]byte, error) {
	stamped := *r
	if stamped.V == 0 {
		stamped.V = Version
	}
	if bad := stamped.Validate(); bad != nil {
		return nil, bad
	}
	body, err := encode("request", stamped)
	if err != nil {
		return nil, err
	}
	if len(body) > MaxRequestBytes {
		return nil, invalid(ReasonTooBig, "", "the body must have at most %d bytes, not %d", MaxRequestBytes, len(body))
	}
	return body, nil
}

// Digest tells two requests apart: the SHA-256, in hex, of the queue and the
// canonical form of the body (RFC 8785), so that white space, the order of names
// and the spelling of strings and numbers do not count. It is an error when the
// body is not JSON.
func Digest(queue string, body []byte) (string, error) {
	canonical := jsontext.Value(bytes.Clone(body))
	if err := canonical.Canonicalize(); err != nil {
		return "", errors.New("digest: the body is not valid JSON")
	}
	// A queue is a token, so the line break cannot belong to it.
	sum := sha256.Sum256(slices.Concat([]byte(queue), []byte("\n"), canonical))
	return hex.EncodeToString(sum[:]), nil
}

// EncodeResult is the one form of r that is stored and repeated byte for byte.
// Texts are cut to their bounds and times of a skewed clock set to zero, so that
// only a broken rule (an outcome without its detail, both exit code and signal)
// is an error. V may be zero.
func EncodeResult(r *Result) ([]byte, error) {
	tidy := r.tidy()
	if bad := tidy.Validate(); bad != nil {
		return nil, fmt.Errorf("encode result: %w", bad)
	}
	return encode("result", tidy)
}

// DecodeResult reads a result. Fields that it does not know are ignored, because
// whoever reads a result may be older than who wrote it; the outcomes and
// reasons are closed.
func DecodeResult(data []byte) (*Result, error) {
	return decodeValid[Result](document{name: "result", maxBytes: MaxRecordBytes, ignoreUnknown: true}, data)
}

// EncodeRunRecord encodes r; its result stands in it byte for byte. V may be
// zero.
func EncodeRunRecord(r *RunRecord) ([]byte, error) {
	stamped := *r
	stamped.V = Version
	if bad := stamped.Validate(); bad != nil {
		return nil, fmt.Errorf("encode run record: %w", bad)
	}
	data, err := encode("run record", stamped)
	if err != nil {
		return nil, err
	}
	// The JSON encoder drops white space. A result that did not come from
	// EncodeResult must not change on its way through the record unnoticed.
	if !bytes.Contains(data, stamped.Result) {
		return nil, errors.New("encode run record: the result is not in the form of EncodeResult")
	}
	return data, nil
}

// DecodeRunRecord reads a run record. An unknown field is an error: whoever
// rewrites a record must not drop what a newer worker wrote into it.
func DecodeRunRecord(data []byte) (*RunRecord, error) {
	return decodeValid[RunRecord](document{name: "run record", maxBytes: MaxRecordBytes}, data)
}

// EncodeQuarantine encodes q. Texts and evidence are cut to their bounds. V may
// be zero.
func EncodeQuarantine(q *Quarantine) ([]byte, error) {
	tidy := *q
	tidy.V = Version
	tidy.Message, tidy.Note = bounded(q.Message), bounded(q.Note)
	tidy.Evidence = tidyEvidence(q.Evidence)
	if bad := tidy.Validate(); bad != nil {
		return nil, fmt.Errorf("encode quarantine record: %w", bad)
	}
	return encode("quarantine record", tidy)
}

// DecodeQuarantine reads a quarantine record, strictly.
func DecodeQuarantine(data []byte) (*Quarantine, error) {
	return decodeValid[Quarantine](document{name: "quarantine record", maxBytes: MaxRecordBytes}, data)
}

// EncodeDeadLetter encodes d. The body is cut to MaxDeadBodyBytes, and further
// where long headers would make the record longer than MaxRecordBytes; BodyCut
// says so. V may be zero.
func EncodeDeadLetter(d *DeadLetter) ([]byte, error) {
	tidy := *d
	tidy.V = Version
	tidy.Message = bounded(d.Message)
	tidy.Headers = tidyHeaders(d.Headers)
	tidy.cutBody(MaxDeadBodyBytes)
	if bad := tidy.Validate(); bad != nil {
		return nil, fmt.Errorf("encode dead letter: %w", bad)
	}
	data, err := encode("dead letter", tidy)
	if err != nil || len(data) <= MaxRecordBytes {
		return data, err
	}
	// Four characters of base64 hold three bytes; two groups more for rounding.
	excess := len(data) - MaxRecordBytes
	tidy.cutBody(max(len(tidy.Body)-excess/4*3-6, 0))
	if data, err = encode("dead letter", tidy); err == nil && len(data) > MaxRecordBytes {
		return nil, fmt.Errorf("encode dead letter: the headers alone exceed %d bytes", MaxRecordBytes)
	}
	return data, err
}

// DecodeDeadLetter reads a dead letter, strictly.
func DecodeDeadLetter(data []byte) (*DeadLetter, error) {
	return decodeValid[DeadLetter](document{name: "dead letter", maxBytes: MaxRecordBytes}, data)
}

// EncodeStarted encodes the body of a started event. V may be zero.
func EncodeStarted(s *Started) ([]byte, error) {
	stamped := *s
	stamped.V = Version
	if bad := stamped.Validate(); bad != nil {
		return nil, fmt.Errorf("encode started event: %w", bad)
	}
	return encode("started event", stamped)
}

// DecodeStarted reads the body of a started event; unknown fields are ignored, as
// in a result.
func DecodeStarted(data []byte) (*Started, error) {
	return decodeValid[Started](document{name: "started event", maxBytes: MaxRecordBytes, ignoreUnknown: true}, data)
}

// EncodeAccepted encodes the body of an accepted event. V may be zero.
func EncodeAccepted(a *Accepted) ([]byte, error) {
	stamped := *a
	stamped.V = Version
	if bad := stamped.Validate(); bad != nil {
		return nil, fmt.Errorf("encode accepted event: %w", bad)
	}
	return encode("accepted event", stamped)
}

// DecodeAccepted reads the body of an accepted event; unknown fields are ignored,
// as in a result.
func DecodeAccepted(data []byte) (*Accepted, error) {
	return decodeValid[Accepted](document{name: "accepted event", maxBytes: MaxRecordBytes, ignoreUnknown: true}, data)
}

// MarshalJSONTo writes the result as it is.
func (r RawResult) MarshalJSONTo(encoder *jsontext.Encoder) error {
	return encoder.WriteValue(jsontext.Value(r))
}

// UnmarshalJSONFrom keeps the result as it stands in the record.
func (r *RawResult) UnmarshalJSONFrom(decoder *jsontext.Decoder) error {
	value, err := decoder.ReadValue()
	if err != nil {
		return err
	}
	*r = RawResult(value.Clone())
	return nil
}

// validator is a decoded document that can check itself.
type validator[T any] interface {
	*T
	Validate() *Invalid
}

func decodeValid[T any, P validator[T]](doc document, data []byte) (*T, error) {
	into := new(T)
	bad := doc.decode(data, into)
	if bad == nil {
		bad = P(into).Validate()
	}
	if bad != nil {
		return nil, fmt.Errorf("decode %s: %w", doc.name, bad)
	}
	return into, nil
}

// encode is deterministic. What is not UTF-8 becomes U+FFFD: a program may put
// any bytes into a file name, and that must not keep a result from being final.
func encode(name string, value any) ([]byte, error) {
	data, err := json.Marshal(value, json.Deterministic(true), jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true))
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	return data, nil
}

// tidyHeaders makes names that are not UTF-8 encodable. Two of them may become the
// same name, which then has the values of both: a message must not be able to
// keep itself out of the dead letters.
func tidyHeaders(headers map[string][]string) map[string][]string {
	if len(headers) == 0 {
		return nil
	}
	tidy := make(map[string][]string, len(headers))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		clean := strings.ToValidUTF8(name, "\uFFFD")
		tidy[clean] = slices.Concat(tidy[clean], headers[name])
	}
	return tidy
}

func (d *DeadLetter) cutBody(limit int) {
	if len(d.Body) > limit {
		d.Body, d.BodyCut = d.Body[:limit], true
	}
}
