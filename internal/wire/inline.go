package wire

import (
	"encoding/base64"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// The encodings of inline data.
const (
	EncodingText   = "text"
	EncodingBase64 = "base64"
)

// MaxInlineBytes bounds each of the two streams in a result. Both together take at
// most 768 KiB in a result's JSON: with the rest of it and the run record around
// it that stays below a server's default max_payload of 1 MiB.
const MaxInlineBytes = 256 << 10

// NewInline encodes data: as text when it is UTF-8 and its JSON form is at most
// half as long again (output that is JSON itself is, with its many quotes) plus a
// little (short output with a few control characters stays readable), as base64
// otherwise. It copies data.
func NewInline(data []byte) *Inline {
	const leeway = 64
	if utf8.Valid(data) {
		form, err := jsontext.AppendQuote(nil, data)
		if err == nil && len(form) <= len(data)+len(data)/2+leeway {
			return &Inline{Encoding: EncodingText, Data: string(data)}
		}
	}
	return &Inline{Encoding: EncodingBase64, Data: base64.StdEncoding.EncodeToString(data)}
}

// Bytes are the bytes that i stands for. A nil i is no bytes.
func (i *Inline) Bytes() ([]byte, error) {
	if i == nil {
		return nil, nil
	}
	switch i.Encoding {
	case EncodingText:
		return []byte(i.Data), nil
	case EncodingBase64:
		data, err := base64.StdEncoding.Strict().DecodeString(i.Data)
		if err != nil {
			return nil, fmt.Errorf("decode inline output: %w", err)
		}
		return data, nil
	}
	return nil, fmt.Errorf("inline output: encoding must be %s or %s, not %s", EncodingText, EncodingBase64, quoted(i.Encoding))
}
