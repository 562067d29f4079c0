package wire

import (
	"encoding/base64"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of files in and out.
const (
	// MaxObjectName is the longest name of an object, in bytes: encoded, it is part
	// of a subject, and a server takes one protocol line of 4 KiB.
	MaxObjectName = 256
	// MaxObjectBytes is the largest object that is placed or collected.
	MaxObjectBytes = 64 << 20
	// MaxCollectBytes bounds the patterns of output files together: they are matched
	// against every name that a job has made.
	MaxCollectBytes = 8 << 10
	// MaxCollected bounds the files of a result, refused ones included, and
	// MaxCollectedBytes what is delivered of them.
	MaxCollected      = 256
	MaxCollectedBytes = 256 << 20
	// MaxCollectedNames bounds the bytes of their paths and reasons together.
	MaxCollectedNames = 48 << 10
)

// InlineFilesBytes is how many bytes of collected files stand in a result itself,
// so that it fits a record beside what else is inline: 64 KiB beside inline output,
// else 512 KiB. In base64 they take a third more.
func InlineFilesBytes(mode OutputMode) int64 {
	if mode == OutputInline {
		return 64 << 10
	}
	return 512 << 10
}

// ValidObject says whether name may name an object of a tenant: 1 to MaxObjectName
// bytes of UTF-8 without control characters, segments between slashes that are not
// empty, "." or "..".
func ValidObject(name string) bool {
	if name == "" || len(name) > MaxObjectName || !plainText(name) {
		return false
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return false
		}
	}
	return true
}

// ObjectKey is where an object of a tenant stands in the bucket. A tenant has no
// slash, so that no tenant's key is another's.
func ObjectKey(tenant, name string) string { return tenant + "/" + name }

// CollectedObject names the object that holds the nth collected file of an attempt.
func CollectedObject(id string, attempt, n int) string {
	return "collected/" + id + "/" + strconv.Itoa(attempt) + "/" + strconv.Itoa(n)
}

// FileName is the name of a collected file as it may stand in a result. A name that
// is not UTF-8, or has control characters, could pretend to be another one: it comes
// back escaped, as in Go, and not ok.
func FileName(raw string) (name string, ok bool) {
	if plainText(raw) {
		return raw, true
	}
	quoted := strconv.Quote(raw)
	return quoted[1 : len(quoted)-1], false
}

// plainText says that s is UTF-8 and moves no cursor: no control characters, no line
// separators, no directional overrides.
func plainText(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool {
		return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
	}) < 0
}

// Bytes are the contents of a file that stands in the result.
func (f *CollectedFile) Bytes() ([]byte, error) {
	return base64.StdEncoding.Strict().DecodeString(f.Base64)
}

// checkFiles checks the collected files of a result.
func (r *Result) checkFiles() *Invalid {
	if len(r.Files) > MaxCollected {
		return invalid(ReasonTooBig, "files", "must have at most %d elements, not %d", MaxCollected, len(r.Files))
	}
	if r.FilesOmitted < 0 {
		return invalid(ReasonField, "files_omitted", "must not be negative")
	}
	names := 0
	for i := range r.Files {
		f, field := &r.Files[i], element("files", i)
		if bad := f.check(field); bad != nil {
			return bad
		}
		names += len(f.Path) + len(f.Refuse)
	}
	if names > MaxCollectedNames {
		return invalid(ReasonTooBig, "files", "must have at most %d bytes of paths and reasons, not %d", MaxCollectedNames, names)
	}
	return nil
}

func (f *CollectedFile) check(field string) *Invalid {
	given := 0
	for _, s := range []string{f.Base64, f.Object, f.Refuse} {
		if s != "" {
			given++
		}
	}
	data, err := f.Bytes()
	switch {
	case f.Path == "" || !plainText(f.Path):
		return invalid(ReasonField, field+".path", "must be text without control characters")
	case f.Size < 0:
		return invalid(ReasonField, field+".size", "must not be negative")
	case given > 1:
		return invalid(ReasonField, field, "must have at most one of base64, object and refused")
	case f.Object != "" && !ValidObject(f.Object):
		return invalid(ReasonField, field+".object", "must be the name of an object")
	case err != nil:
		return invalid(ReasonField, field+".base64", "must be base64 (RFC 4648, with padding)")
	case f.Object == "" && f.Refuse == "" && int64(len(data)) != f.Size:
		return invalid(ReasonField, field+".size", "must be that of the content, %d, not %d", len(data), f.Size)
	}
	return nil
}

// checkPlaces refuses input files of which one would stand in the way of another.
// Two spellings of one place would make the order decide.
func (r *Request) checkPlaces() *Invalid {
	file := make(map[string]bool, len(r.Files)) // a directory is false
	for i := range r.Files {
		field := element("files", i) + ".path"
		place := path.Clean(r.Files[i].Path)
		if _, there := file[place]; there {
			return invalid(ReasonField, field, "is the path of another element of files too, or a directory on its way")
		}
		file[place] = true
		for dir := path.Dir(place); dir != "."; dir = path.Dir(dir) {
			if file[dir] {
				return invalid(ReasonField, field, "leads through another element of files, which is no directory")
			}
			file[dir] = false
		}
	}
	return nil
}
