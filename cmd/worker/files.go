package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sallyport/sallyport/client"
	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/wire"
)

// inlineFiles is how many bytes of files travel in the request itself: with the rest
// of it they fit the usual max_payload of 1 MiB, in base64, too. Others go through
// the object store.
const inlineFiles = 512 << 10

// saveTimeout bounds the fetching of one collected file.
const saveTimeout = 5 * time.Minute

// fileFlags say which files a job takes in, and which come back.
type fileFlags struct {
	File    []string `sep:"none" help:"Put a local file into the job's workspace, any number of times; PATH is its name there, MODE its permissions (0755 for a program)." placeholder:"LOCAL[:PATH[:MODE]]"`
	Collect []string `sep:"none" help:"Bring files of the workspace back, any number of times: *, ? and [a-z] between slashes, ** for any directories." placeholder:"GLOB"`

	uploads []upload
}

// upload is a local file that the request names as an object.
type upload struct{ local, object string }

// parseFile reads LOCAL[:PATH[:MODE]].
func parseFile(word string) (local, place, mode string, err error) {
	parts := strings.Split(word, ":")
	if len(parts) > 3 || parts[0] == "" {
		return "", "", "", fmt.Errorf("%q is not LOCAL[:PATH[:MODE]]", word)
	}
	local = parts[0]
	place = filepath.Base(local)
	if len(parts) > 1 && parts[1] != "" {
		place = parts[1]
	}
	if len(parts) > 2 {
		mode = parts[2]
	}
	if len(mode) == 3 {
		mode = "0" + mode
	}
	return local, place, mode, nil
}

// read puts the files into r: their content where it fits, else the name under which
// upload stores it.
func (f *fileFlags) read(r *client.Request) error {
	room := int64(inlineFiles)
	var wrong []error
	for _, word := range f.File {
		local, place, mode, err := parseFile(word)
		if err == nil {
			err = f.add(r, local, wire.File{Path: place, Mode: mode}, &room)
		}
		if err != nil {
			wrong = append(wrong, err)
		}
	}
	r.Collect = f.Collect
	return errors.Join(wrong...)
}

func (f *fileFlags) add(r *client.Request, local string, file wire.File, room *int64) (err error) {
	from, err := os.Open(local)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	info, err := from.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is no regular file", local)
	case info.Size() > wire.MaxObjectBytes:
		return fmt.Errorf("%s is larger than a file may be (%s)", local, config.FormatSize(wire.MaxObjectBytes))
	}
	if file.Mode == "" && info.Mode()&0o100 != 0 {
		file.Mode = "0755"
	}
	if info.Size() > *room {
		digest := sha256.New()
		if _, err := io.Copy(digest, from); err != nil {
			return err
		}
		// The name says the content: the same request again is the same.
		file.Object = "uploaded/" + hex.EncodeToString(digest.Sum(nil))
		f.uploads = append(f.uploads, upload{local, file.Object})
		r.Files = append(r.Files, file)
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(from, *room+1))
	if err != nil {
		return err
	}
	*room -= int64(len(data))
	if *room < 0 {
		return fmt.Errorf("%s grew while it was read", local)
	}
	text := string(data)
	if utf8.ValidString(text) {
		file.Text = &text
	} else {
		text = base64.StdEncoding.EncodeToString(data)
		file.Base64 = &text
	}
	r.Files = append(r.Files, file)
	return nil
}

// upload stores what the request names.
func (f *fileFlags) upload(ctx context.Context, cl *client.Client) error {
	for _, u := range f.uploads {
		if err := u.store(ctx, cl); err != nil {
			return fmt.Errorf("upload %s: %w", u.local, err)
		}
	}
	return nil
}

func (u upload) store(ctx context.Context, cl *client.Client) (err error) {
	from, err := os.Open(u.local)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	return cl.PutObject(ctx, u.object, from)
}

// save writes the collected files below dir, and nowhere else, whatever they are
// called; what stands there under their names is replaced.
func save(s *session, cl *client.Client, dir string, result *client.Result) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	var faults []error
	for i := range result.Files {
		f := &result.Files[i]
		if f.Refuse != "" {
			s.warnf("not collected: %s: %s", f.Path, f.Refuse)
			continue
		}
		if err := saveFile(s.ctx, cl, root, f); err != nil {
			faults = append(faults, fmt.Errorf("save %q: %w", f.Path, err))
		}
	}
	if result.FilesOmitted > 0 {
		s.warnf("not collected: %d more files", result.FilesOmitted)
	}
	return errors.Join(append(faults, root.Close())...)
}

// saveFile writes beside its place and then renames, so that no link that stands
// there is followed and nobody sees half a file.
func saveFile(ctx context.Context, cl *client.Client, root *os.Root, f *client.CollectedFile) (err error) {
	name := path.Clean(f.Path)
	if !filepath.IsLocal(name) || name == "." {
		return errors.New("its name leads out of the directory")
	}
	if err := root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	beside := path.Join(path.Dir(name), ".sallyport-"+rand.Text())
	to, err := root.OpenFile(beside, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	err = errors.Join(cl.Fetch(ctx, f, to), to.Close())
	if err == nil {
		err = root.Rename(beside, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(beside))
	}
	return nil
}
