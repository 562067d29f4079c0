package wire

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth bounds the nesting of every document. Ours need five levels; the
// rest is room for what a later version brings, which is then refused for its
// version and not for its depth.
const maxDepth = 16

// document is one kind of JSON document.
type document struct {
	name     string // as in "a field of a request"
	maxBytes int
	// ignoreUnknown lets a reader pass over fields that a newer writer added.
	ignoreUnknown bool
}

// decode reads body strictly into the struct that into points to. It reads
// twice: the first pass finds what a decoder into Go types cannot tell (the
// version before everything else, null, depth, what follows the document), in
// memory that does not grow with the nesting.
func (d document) decode(body []byte, into any) *Invalid {
	if len(body) > d.maxBytes {
		return invalid(ReasonTooBig, "", "the body must have at most %d bytes, not %d", d.maxBytes, len(body))
	}
	if len(body) == 0 {
		return invalid(ReasonNotJSON, "", "the body is empty; it must be the JSON object of a %s", d.name)
	}
	if !utf8.Valid(body) {
		return invalid(ReasonNotJSON, "", "the body is not UTF-8, which JSON must be")
	}
	s := scanner{document: d, body: body, root: reflect.TypeOf(into).Elem(), decoder: jsontext.NewDecoder(bytes.NewBuffer(body))}
	if bad := s.scan(); bad != nil {
		return bad
	}
	if err := json.Unmarshal(body, into, json.RejectUnknownMembers(!d.ignoreUnknown)); err != nil {
		return s.explain(err)
	}
	return s.empty
}

// scanner is the first pass over a document.
type scanner struct {
	document
	body    []byte
	root    reflect.Type
	decoder *jsontext.Decoder
	// version is the raw top-level v, once hasVersion.
	version    string
	hasVersion bool
	tooDeep    *Invalid
	// empty is the first null or forbidden empty string. It is reported last, so
	// that an unknown field is told by its own name first.
	empty *Invalid
}

func (s *scanner) scan() *Invalid {
	err := s.tokens()
	switch {
	case err == nil:
	case s.wrongVersion():
		// What a later version allows is not ours to judge.
	case s.tooDeep != nil:
		return s.tooDeep
	default:
		return s.explain(err)
	}
	switch {
	case !s.hasVersion:
		return invalid(ReasonVersion, "v", "is missing; write %q", `"v": 1`)
	case s.wrongVersion():
		return invalid(ReasonVersion, "v", "must be the number %d, not %s; this build speaks no other version", Version, s.version)
	}
	return s.tooDeep
}

func (s *scanner) wrongVersion() bool {
	return s.hasVersion && s.version != strconv.Itoa(Version)
}

// tokens reads the one JSON object that must be there, and nothing after it.
func (s *scanner) tokens() error {
	versionNext := false
	for first := true; ; first = false {
		token, err := s.decoder.ReadToken()
		switch {
		case err != nil:
			return err
		case first && token.Kind() != '{':
			return notObjectError{kind: token.Kind()}
		}
		depth := s.decoder.StackDepth()
		if depth == 0 {
			return s.nothingMore()
		}
		if versionNext {
			s.version, s.hasVersion = got(token.Kind(), token.String()), true
		}
		kind, length := s.decoder.StackIndex(depth)
		isName := kind == '{' && length%2 == 1 && token.Kind() == '"'
		versionNext = isName && depth == 1 && token.String() == "v"
		if depth > maxDepth && s.tooDeep == nil {
			s.tooDeep = invalid(ReasonField, "", "the body is nested more than %d levels deep", maxDepth)
		}
		if s.empty == nil && !isName && depth <= maxDepth {
			s.empty = s.forbidden(token)
		}
	}
}

// nothingMore expects the end of the body.
func (s *scanner) nothingMore() error {
	end := s.decoder.InputOffset()
	_, err := s.decoder.ReadToken()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return trailingError{offset: end}
}

// forbidden refuses null everywhere: it could mean "absent", "empty" or a bug of
// the sender. It also refuses an empty string where the Go type could not tell it
// from an absent field.
func (s *scanner) forbidden(token jsontext.Token) *Invalid {
	switch {
	case token.Kind() == 'n':
		path, wanted := s.place(s.decoder.StackPointer())
		return invalid(ReasonField, path, "must be %s, not null; leave a field out that has no value", expected(path, wanted))
	case token.Kind() == '"' && token.String() == "":
		pointer := string(s.decoder.StackPointer())
		inFile := strings.HasPrefix(pointer, "/files/") && (strings.HasSuffix(pointer, "/object") || strings.HasSuffix(pointer, "/mode"))
		if inFile || slices.Contains([]string{"/cwd", "/profile", "/output", "/lease/reuse"}, pointer) {
			path, _ := s.place(jsontext.Pointer(pointer))
			return invalid(ReasonField, path, "must not be empty; leave the field out")
		}
	}
	return nil
}

type notObjectError struct{ kind jsontext.Kind }

func (e notObjectError) Error() string { return "not an object" }

type trailingError struct{ offset int64 }

func (e trailingError) Error() string { return "data after the document" }

// explain turns an error of the JSON library into words about the sender's
// document. No text of the library gets through: it speaks of Go types.
func (s *scanner) explain(err error) *Invalid {
	var syntax *jsontext.SyntacticError
	var semantic *json.SemanticError
	var notObject notObjectError
	var trailing trailingError
	switch {
	case errors.As(err, &notObject):
		return invalid(ReasonNotJSON, "", "the body must be a JSON object, not %s", got(notObject.kind, ""))
	case errors.As(err, &trailing):
		return invalid(ReasonNotJSON, "", "there is more data after the JSON object, from byte %d on", trailing.offset)
	case errors.Is(err, jsontext.ErrDuplicateName) && errors.As(err, &syntax):
		path, _ := s.place(syntax.JSONPointer)
		return invalid(ReasonField, path, "stands twice; a name must stand once in its object")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return invalid(ReasonNotJSON, "", "the body ends in the middle of the JSON object")
	case errors.As(err, &syntax):
		return invalid(ReasonNotJSON, "", "the body is not valid JSON at byte %d", syntax.ByteOffset)
	case errors.As(err, &semantic):
		return s.explainField(semantic)
	}
	return invalid(ReasonNotJSON, "", "the body cannot be read as a %s", s.name)
}

func (s *scanner) explainField(err *json.SemanticError) *Invalid {
	path, wanted := s.place(err.JSONPointer)
	if errors.Is(err.Err, json.ErrUnknownName) {
		name := err.JSONPointer.LastToken()
		if near := s.sameLetters(err.JSONPointer, name); near != "" {
			return invalid(ReasonField, path, "is not a field of a %s; names are case-sensitive, did you mean %q?", s.name, near)
		}
		return invalid(ReasonField, path, "is not a field of a %s, version %d", s.name, Version)
	}
	return invalid(ReasonField, path, "must be %s, not %s", expected(path, wanted), s.found(err))
}

// found describes the value that an error is about. The library tells its place,
// but not always the value.
func (s *scanner) found(err *json.SemanticError) string {
	value := err.JSONValue
	if len(value) == 0 && err.ByteOffset < int64(len(s.body)) {
		rest := bytes.TrimLeft(s.body[err.ByteOffset:], " \t\r\n:,")
		if next, readErr := jsontext.NewDecoder(bytes.NewBuffer(rest)).ReadValue(); readErr == nil {
			value = next
		}
	}
	if value.Kind() != err.JSONKind {
		return got(err.JSONKind, "")
	}
	text := string(value)
	if plain, unquoteErr := jsontext.AppendUnquote(nil, value); unquoteErr == nil {
		text = string(plain)
	}
	return got(err.JSONKind, text)
}

// sameLetters is the field beside the named one that differs in case only.
func (s *scanner) sameLetters(pointer jsontext.Pointer, name string) string {
	_, parent := s.place(pointer.Parent())
	if parent == nil || parent.Kind() != reflect.Struct {
		return ""
	}
	for field := range parent.Fields() {
		if tag := fieldName(field); strings.EqualFold(tag, name) {
			return tag
		}
	}
	return ""
}

// place is the path in words of a place in the document, and the Go type that
// belongs there, nil when none does.
func (s *scanner) place(pointer jsontext.Pointer) (path string, wanted reflect.Type) {
	wanted = s.root
	for token := range pointer.Tokens() {
		if len(path) > maxQuoted*2 {
			return path + "…", nil
		}
		container := wanted
		wanted = nil
		switch {
		case container != nil && container.Kind() == reflect.Struct && container != reflect.TypeFor[time.Time]():
			wanted = fieldType(container, token)
		case container != nil && container.Kind() == reflect.Map:
			wanted = container.Elem()
		case container != nil && container.Kind() == reflect.Slice && container.Elem().Kind() != reflect.Uint8:
			wanted = container.Elem()
			path += "[" + truncate(token, 20) + "]"
			continue
		}
		path = member(path, token)
		if wanted != nil && wanted.Kind() == reflect.Pointer {
			wanted = wanted.Elem()
		}
	}
	return path, wanted
}

func fieldType(structure reflect.Type, name string) reflect.Type {
	for field := range structure.Fields() {
		if fieldName(field) == name {
			return field.Type
		}
	}
	return nil
}

func fieldName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

// expected says in words what belongs at path, from its Go type.
func expected(path string, wanted reflect.Type) string {
	if wanted == nil {
		return "a value"
	}
	if text := expectedNumber(path); text != "" {
		return text
	}
	switch wanted {
	case reflect.TypeFor[time.Time]():
		return "a time as in RFC 3339, for instance 2026-01-31T12:00:00Z"
	case reflect.TypeFor[OutputMode]():
		return choice(outputModes())
	case reflect.TypeFor[Reuse]():
		return choice(reuses())
	case reflect.TypeFor[RawResult]():
		return "a result"
	}
	switch kind := wanted.Kind(); {
	case kind == reflect.String:
		return "a string"
	case kind == reflect.Bool:
		return "true or false"
	case wanted.ConvertibleTo(reflect.TypeFor[float64]()):
		if kind == reflect.Float64 {
			return "a number"
		}
		return "a whole number"
	case kind == reflect.Map && wanted.Elem().Kind() == reflect.String:
		return "an object whose values are strings"
	case kind == reflect.Map:
		return "an object whose values are lists of strings"
	case kind == reflect.Slice:
		return expectedList(wanted.Elem().Kind())
	}
	return "an object"
}

func expectedList(element reflect.Kind) string {
	if element == reflect.Uint8 {
		return "a string in base64"
	}
	if element == reflect.String {
		return "a list of strings"
	}
	return "a list of objects"
}

// expectedNumber is the range of a bounded number of a request, "" for every
// other path.
func expectedNumber(path string) string {
	switch path {
	case "retry.max_attempts":
		return wholeNumberText("attempts", 1, MaxAttemptsCeiling)
	case "priority":
		return wholeNumberText("", 0, MaxPriority)
	}
	name, found := strings.CutPrefix(path, "limits.")
	if !found {
		return ""
	}
	for _, f := range limitFields() {
		if f.name == name {
			return wholeNumberText(f.unit, 1, f.ceiling)
		}
	}
	return ""
}

func wholeNumberText(unit string, least, most int64) string {
	text := "a whole number"
	if unit != "" {
		text += " of " + unit
	}
	return text + " from " + strconv.FormatInt(least, 10) + " to " + strconv.FormatInt(most, 10)
}

// choice is "one of a, b, c".
func choice[T ~string](allowed []T) string {
	words := make([]string, len(allowed))
	for i, word := range allowed {
		words[i] = string(word)
	}
	return "one of " + strings.Join(words, ", ")
}

// got describes what stood in the document, by the first byte of its kind.
func got(kind jsontext.Kind, text string) string {
	switch first := byte(kind); {
	case first == '"' && text != "":
		return quoted(text)
	case first == '0' && text != "":
		return truncate(text, maxQuoted)
	case first == '"':
		return "a string"
	case first == '0':
		return "a number"
	case first == 'n':
		return "null"
	case first == 't', first == 'f':
		return "true or false"
	case first == '{':
		return "an object"
	case first == '[':
		return "a list"
	}
	return "something else"
}
