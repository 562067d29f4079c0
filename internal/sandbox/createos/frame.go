package createos

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// maxFrameBytes bounds one line of an output stream.
const maxFrameBytes = 1 << 20

// streamError is a stream that breaks the protocol. It cannot be read on: what follows
// would be glued over what was not understood.
type streamError string

func (e streamError) Error() string { return "the output stream " + string(e) }

// The faults.
const (
	errFrame        streamError = "has an invalid frame"
	errFrameSize    streamError = "has a frame that is too large"
	errUnknownEvent streamError = "has an unknown event"
	errSequence     streamError = "has an invalid sequence"
	errGap          streamError = "has a gap"
	errOutput       streamError = "has invalid output"
	errExitStatus   streamError = "has an end without an exit status"
)

// frame is one line, its type's fields only.
type frame struct {
	kind   frameKind
	seq    uint64
	stream sandbox.Stream
	data   []byte
	exit   *sandbox.Exit
	// evicted says that an error is the loss of output.
	evicted bool
}

type frameKind int

const (
	frameData frameKind = iota + 1
	frameSeen           // data that was handed over before
	frameExit
	frameHeartbeat
	frameError
)

// decodeFrame reads a line that follows the piece of output number cursor.
func decodeFrame(line []byte, cursor uint64) (frame, error) {
	var raw struct {
		Type   string         `json:"type"`
		Seq    jsontext.Value `json:"seq"`
		Stream jsontext.Value `json:"stream"`
		Data   jsontext.Value `json:"data_base64"`
		Code   jsontext.Value `json:"exit_code"`
		Signal jsontext.Value `json:"signal"`
		Error  jsontext.Value `json:"error"`
	}
	if len(line) > maxFrameBytes {
		return frame{}, errFrameSize
	}
	// A line that is valid JSON but whose type is no text has an unknown event.
	if err := json.Unmarshal(line, &raw); err != nil {
		if value := jsontext.Value(line); value.IsValid() && value.Kind() == '{' {
			return frame{}, errUnknownEvent
		}
		return frame{}, errFrame
	}
	if jsontext.Value(line).Kind() != '{' { // null decodes into anything
		return frame{}, errFrame
	}
	switch raw.Type {
	case "data":
		return decodeData(raw.Seq, raw.Stream, raw.Data, cursor)
	case "exit":
		return decodeExit(raw.Code, raw.Signal)
	case "heartbeat":
		return frame{kind: frameHeartbeat}, nil
	case "error":
		var code string
		if len(raw.Error) == 0 || json.Unmarshal(raw.Error, &code) != nil {
			code = ""
		}
		return frame{kind: frameError, evicted: code == "output_offset_expired"}, nil
	}
	return frame{}, errUnknownEvent
}

func decodeData(seq, stream, data jsontext.Value, cursor uint64) (frame, error) {
	f := frame{kind: frameData}
	if seq.Kind() != '0' || json.Unmarshal(seq, &f.seq) != nil || f.seq == 0 {
		return frame{}, errSequence
	}
	switch {
	case f.seq <= cursor:
		return frame{kind: frameSeen, seq: f.seq}, nil
	case f.seq != cursor+1:
		return frame{}, errGap
	}
	var name, text string
	if stream.Kind() != '"' || json.Unmarshal(stream, &name) != nil || data.Kind() != '"' || json.Unmarshal(data, &text) != nil {
		return frame{}, errOutput
	}
	switch name {
	case "stdout":
		f.stream = sandbox.Stdout
	case "stderr":
		f.stream = sandbox.Stderr
	default:
		return frame{}, errOutput
	}
	var err error
	f.data, err = decodeBase64(text)
	return f, err
}

// decodeBase64 is strict: the decoder of the standard library passes over line ends.
func decodeBase64(text string) ([]byte, error) {
	for i := range len(text) {
		if text[i] == '\n' || text[i] == '\r' {
			return nil, errOutput
		}
	}
	data, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, errOutput
	}
	return data, nil
}

func decodeExit(code, signal jsontext.Value) (frame, error) {
	var number *int
	var name string
	if k := code.Kind(); k != 0 && k != 'n' && (k != '0' || json.Unmarshal(code, &number) != nil) {
		return frame{}, errExitStatus
	}
	if k := signal.Kind(); k != 0 && k != 'n' && (k != '"' || json.Unmarshal(signal, &name) != nil) {
		return frame{}, errExitStatus
	}
	exit, err := exitOf(number, name)
	if err != nil {
		return frame{}, errExitStatus
	}
	return frame{kind: frameExit, exit: exit}, nil
}

// readLine reads the next line, without its end. A line without an end is one, too, when
// the stream ends in good order; io.EOF comes after the last.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxFrameBytes+1:
			return nil, errFrameSize
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil
		default:
			return nil, err
		}
	}
}

// marks tells a program's output from what was written before it.
type marks struct {
	nonce   string
	started [3]bool
	held    [3][]byte
}

// maxHeld bounds what is kept of what comes before the mark.
const maxHeld = 64 << 10

// take returns what of p is the program's own, and the words of our lines in it.
func (m *marks) take(stream sandbox.Stream, p []byte) (output []byte, words []string) {
	if m.started[stream] {
		return p, nil
	}
	held := append(m.held[stream], p...)
	for {
		line, rest, ok := bytes.Cut(held, []byte{'\n'})
		if !ok {
			break
		}
		held = rest
		word, ours := cutMark(line, m.nonce)
		if !ours {
			continue
		}
		words = append(words, word)
		if word == "start" {
			m.started[stream], m.held[stream] = true, nil
			return held, words
		}
	}
	m.held[stream] = append([]byte(nil), held[max(0, len(held)-maxHeld):]...)
	return nil, words
}

// cutMark returns what stands behind the nonce in a line of ours. What was written before
// it without a line end stands in front.
func cutMark(line []byte, nonce string) (string, bool) {
	_, word, ok := bytes.Cut(line, []byte(nonce+" "))
	return string(word), ok
}
