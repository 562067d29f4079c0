package createos_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/createos"
)

// TestKinds is the one table of what the service's answers mean.
func TestKinds(t *testing.T) {
	t.Parallel()
	const (
		refused, ambiguous, gone = sandbox.Refused, sandbox.Ambiguous, sandbox.Gone
		busy, unavailable        = sandbox.Busy, sandbox.Unavailable
	)
	for _, row := range []struct {
		status                 int // 0: no answer
		looks, changes, founds sandbox.Kind
		passes                 bool
	}{
		{0, unavailable, ambiguous, ambiguous, true},
		{301, unavailable, unavailable, unavailable, false},
		{307, unavailable, unavailable, unavailable, false},
		{400, refused, refused, refused, false},
		{401, unavailable, unavailable, unavailable, false},
		{402, unavailable, unavailable, unavailable, false},
		{403, unavailable, unavailable, unavailable, false},
		{404, gone, gone, unavailable, false},
		{408, unavailable, ambiguous, ambiguous, true},
		{409, busy, busy, refused, false},
		{410, gone, gone, gone, false},
		{413, refused, refused, refused, false},
		{422, refused, refused, refused, false},
		{429, busy, busy, busy, true},
		{500, unavailable, ambiguous, ambiguous, true},
		{502, unavailable, ambiguous, ambiguous, true},
		{503, unavailable, ambiguous, ambiguous, true},
		{504, unavailable, ambiguous, ambiguous, true},
	} {
		for effect, want := range map[createos.Effect]sandbox.Kind{createos.Looks: row.looks, createos.Changes: row.changes, createos.Founds: row.founds} {
			kind, passes := createos.Kind(effect, row.status, true, false)
			require.Equal(t, want, kind, "status %d, effect %d", row.status, effect)
			require.Equal(t, row.passes, passes, "status %d", row.status)
			kind, passes = createos.Kind(effect, 0, false, false)
			require.Equal(t, unavailable, kind, "nothing was sent")
			require.True(t, passes)
			kind, passes = createos.Kind(effect, 200, true, true)
			require.Equal(t, sandbox.Protocol, kind, "an answer that makes no sense")
			require.False(t, passes)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, "-1": 0, "soon": 0, "1.5": 0, "99999": 30 * time.Second, "99999999999999999999": 0,
		now.Add(4 * time.Second).Format(http.TimeFormat): 4 * time.Second, now.Add(-time.Hour).Format(http.TimeFormat): 0,
		now.Add(time.Hour).Format(http.TimeFormat): 30 * time.Second,
	} {
		require.Equal(t, want, createos.RetryAfter(text, now), "%q", text)
	}
}

func TestFrames(t *testing.T) {
	t.Parallel()
	data := func(seq any, stream, payload string) string {
		return fmt.Sprintf(`{"type":"data","seq":%v,"stream":%q,"data_base64":%q}`, seq, stream, payload)
	}
	for name, c := range map[string]struct {
		line string
		want createos.Frame
		err  string
	}{
		"stdout":               {data(5, "stdout", "YQ=="), createos.Frame{Kind: createos.FrameData, Seq: 5, Stream: sandbox.Stdout, Data: []byte("a")}, ""},
		"stderr":               {data(5, "stderr", ""), createos.Frame{Kind: createos.FrameData, Seq: 5, Stream: sandbox.Stderr, Data: []byte{}}, ""},
		"seen before":          {data(4, "stdout", "not looked at"), createos.Frame{Kind: createos.FrameSeen, Seq: 4}, ""},
		"heartbeat":            {`{"type":"heartbeat"}`, createos.Frame{Kind: createos.FrameHeartbeat}, ""},
		"unknown field":        {`{"type":"heartbeat","more":{"x":[1]}}`, createos.Frame{Kind: createos.FrameHeartbeat}, ""},
		"exit code":            {`{"type":"exit","exit_code":7}`, createos.Frame{Kind: createos.FrameExit, Exit: &sandbox.Exit{Code: 7}}, ""},
		"exit signal":          {`{"type":"exit","signal":"SIGKILL"}`, createos.Frame{Kind: createos.FrameExit, Exit: &sandbox.Exit{Signal: 9}}, ""},
		"exit signal and code": {`{"type":"exit","exit_code":143,"signal":"SIGTERM"}`, createos.Frame{Kind: createos.FrameExit, Exit: &sandbox.Exit{Signal: 15}}, ""},
		"exit, empty signal":   {`{"type":"exit","exit_code":0,"signal":""}`, createos.Frame{Kind: createos.FrameExit, Exit: &sandbox.Exit{}}, ""},
		"exit, null signal":    {`{"type":"exit","exit_code":0,"signal":null}`, createos.Frame{Kind: createos.FrameExit, Exit: &sandbox.Exit{}}, ""},
		"error":                {`{"type":"error","error":"boom"}`, createos.Frame{Kind: createos.FrameError}, ""},
		"eviction":             {`{"type":"error","error":"output_offset_expired","oldest_available_seq":9}`, createos.Frame{Kind: createos.FrameError, Evicted: true}, ""},
		"error without a word": {`{"type":"error","error":{}}`, createos.Frame{Kind: createos.FrameError}, ""},

		"gap":                 {data(6, "stdout", "YQ=="), createos.Frame{}, "has a gap"},
		"sequence 0":          {data(0, "stdout", "YQ=="), createos.Frame{}, "invalid sequence"},
		"negative sequence":   {data(-1, "stdout", "YQ=="), createos.Frame{}, "invalid sequence"},
		"fractional sequence": {data("5.5", "stdout", "YQ=="), createos.Frame{}, "invalid sequence"},
		"text sequence":       {data(`"5"`, "stdout", "YQ=="), createos.Frame{}, "invalid sequence"},
		"no sequence":         {`{"type":"data","stream":"stdout","data_base64":""}`, createos.Frame{}, "invalid sequence"},
		"huge sequence":       {data("18446744073709551616", "stdout", ""), createos.Frame{}, "invalid sequence"},
		"pty":                 {data(5, "pty", "YQ=="), createos.Frame{}, "invalid output"},
		"no stream":           {`{"type":"data","seq":5,"data_base64":""}`, createos.Frame{}, "invalid output"},
		"no data":             {`{"type":"data","seq":5,"stream":"stdout"}`, createos.Frame{}, "invalid output"},
		"unpadded":            {data(5, "stdout", "YQ"), createos.Frame{}, "invalid output"},
		"url-safe":            {data(5, "stdout", "-_-_"), createos.Frame{}, "invalid output"},
		"white space":         {data(5, "stdout", "YQ==\n"), createos.Frame{}, "invalid output"},
		"line end inside":     {data(5, "stdout", "YW\r\nFh"), createos.Frame{}, "invalid output"},
		"loose bits":          {data(5, "stdout", "YR=="), createos.Frame{}, "invalid output"},
		"no type":             {`{}`, createos.Frame{}, "unknown event"},
		"unknown type":        {`{"type":"surprise"}`, createos.Frame{}, "unknown event"},
		"type of no text":     {`{"type":5}`, createos.Frame{}, "unknown event"},
		"other letter case":   {`{"Type":"heartbeat"}`, createos.Frame{}, "unknown event"},
		"no status":           {`{"type":"exit"}`, createos.Frame{}, "without an exit status"},
		"null status":         {`{"type":"exit","exit_code":null}`, createos.Frame{}, "without an exit status"},
		"fractional code":     {`{"type":"exit","exit_code":1.5}`, createos.Frame{}, "without an exit status"},
		"code out of range":   {`{"type":"exit","exit_code":256}`, createos.Frame{}, "without an exit status"},
		"no such signal":      {`{"type":"exit","signal":"SIGNONE"}`, createos.Frame{}, "without an exit status"},
		"signal of no text":   {`{"type":"exit","signal":9}`, createos.Frame{}, "without an exit status"},
		"half":                {`{"type":"da`, createos.Frame{}, "invalid frame"},
		"two":                 {`{"type":"heartbeat"}{"type":"heartbeat"}`, createos.Frame{}, "invalid frame"},
		"list":                {`[]`, createos.Frame{}, "invalid frame"},
		"null":                {`null`, createos.Frame{}, "invalid frame"},
		"double name":         {`{"type":"heartbeat","type":"exit"}`, createos.Frame{}, "invalid frame"},
		"too large":           {data(5, "stdout", base64.StdEncoding.EncodeToString(make([]byte, 1<<20))), createos.Frame{}, "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			frame, err := createos.DecodeFrame([]byte(c.line), 4)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, frame)
		})
	}
}

func FuzzFrame(f *testing.F) {
	for _, line := range []string{`{"type":"data","seq":1,"stream":"stdout","data_base64":"YQ=="}`, `{"type":"exit","exit_code":0}`, `{"type":"error"}`, "null", ""} {
		f.Add([]byte(line), uint64(0))
	}
	f.Fuzz(func(t *testing.T, line []byte, cursor uint64) {
		frame, err := createos.DecodeFrame(line, cursor)
		switch {
		case err != nil:
			require.Zero(t, frame)
		case frame.Kind == createos.FrameData:
			require.Equal(t, cursor+1, frame.Seq)
		case frame.Kind == createos.FrameExit:
			require.NotNil(t, frame.Exit)
		}
	})
}

// What comes before the mark is dropped, what follows is the program's, in whatever pieces.
func TestMarks(t *testing.T) {
	t.Parallel()
	text := "bash: a warning\nN ready\nno newlineN start\nprogram\nN start\nbinary \xff\xe2\x82"
	for size := 1; size <= len(text); size++ {
		take := createos.Marks("N")
		var output strings.Builder
		var words []string
		for piece := range slices.Chunk([]byte(text), size) {
			out, more := take(sandbox.Stdout, piece)
			output.Write(out)
			words = append(words, more...)
		}
		require.Equal(t, "program\nN start\nbinary \xff\xe2\x82", output.String())
		require.Equal(t, []string{"ready", "start"}, words)
		out, _ := take(sandbox.Stderr, []byte("noise"))
		require.Empty(t, out, "each stream has its own mark")
	}
	take := createos.Marks("N")
	for range 100 {
		take(sandbox.Stdout, make([]byte, 1<<16))
	}
	out, _ := take(sandbox.Stdout, []byte("\nN start\nx"))
	require.Equal(t, "x", string(out))
}

func TestWalkOrder(t *testing.T) {
	t.Parallel()
	sorted := []string{"a", "a/b", "a/b/c", "a/c", "a!", "a.txt", "a0", "ab", "b"}
	shuffled := slices.Clone(sorted)
	slices.Reverse(shuffled)
	slices.SortFunc(shuffled, createos.WalkOrder)
	require.Equal(t, sorted, shuffled)
}
