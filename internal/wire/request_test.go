package wire_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// badRequest is a body that must be refused, and how.
type badRequest struct {
	name   string
	body   string
	reason wire.Reason
	field  string
	// says is a part of the message.
	says string
	// semantic marks what a JSON Schema cannot tell: sizes in bytes, sums, the
	// spelling of numbers, and what is no JSON at all.
	semantic bool
}

// with is a valid request with one more member.
func with(member string) string { return `{"v":1,"argv":["true"],` + member + `}` }

func argv(list string) string { return `{"v":1,"argv":` + list + `}` }

func quote(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// manyArgs has n empty arguments behind the program.
func manyArgs(n int) string { return argv(`["a"` + strings.Repeat(`,""`, n) + `]`) }

func manyEnv(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"N%d":""`, i)
	}
	return with(`"env":{` + b.String() + `}`)
}

func repeated(n int, element string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
}

func badRequests() []badRequest {
	var all []badRequest
	for _, part := range [][]badRequest{badDocuments(), badStrings(), badLimits(), badPlaces(), badChoices()} {
		all = append(all, part...)
	}
	return all
}

func badDocuments() []badRequest {
	const field, notJSON, version = wire.ReasonField, wire.ReasonNotJSON, wire.ReasonVersion
	return []badRequest{
		{"empty", "", notJSON, "", "is empty", true},
		{"blank", " \n", notJSON, "", "ends in the middle", true},
		{"not JSON", "run true please", notJSON, "", "not valid JSON at byte 0", true},
		{"three bytes of 0xFF", "\xff\xff\xff", notJSON, "", "not UTF-8", true},
		{"byte order mark", "\ufeff" + argv(`["a"]`), notJSON, "", "not valid JSON at byte 0", true},
		{"cut", `{"v":1,"argv":["tr`, notJSON, "", "ends in the middle", true},
		{"trailing data", argv(`["a"]`) + ` {}`, notJSON, "", "more data after", true},
		{"trailing junk", argv(`["a"]`) + `}`, notJSON, "", "more data after", true},
		{"trailing comma", `{"v":1,"argv":["a"],}`, notJSON, "", "not valid JSON", true},
		{"comment", `{"v":1,/* */"argv":["a"]}`, notJSON, "", "not valid JSON", true},
		{"lone surrogate", argv(`["\ud800"]`), notJSON, "", "not valid JSON", true},
		{"null", "null", notJSON, "", "must be a JSON object, not null", false},
		{"list", "[]", notJSON, "", "must be a JSON object, not a list", false},
		{"string", `"x"`, notJSON, "", "must be a JSON object", false},
		{"number", "1", notJSON, "", "must be a JSON object, not a number", false},
		{"repeated name", `{"v":1,"argv":["a"],"argv":["b"]}`, field, "argv", "stands twice", true},
		{"repeated env name", with(`"env":{"A":"1","A":"2"}`), field, "env.A", "stands twice", true},
		{"repeated name by escape", with(`"cwd":"/","\u0063wd":"/"`), field, "cwd", "stands twice", true},
		{"repeated version", `{"v":1,"v":1,"argv":["a"]}`, field, "v", "stands twice", true},
		{"wrong case", with(`"Cwd":"/"`), field, "Cwd", `did you mean "cwd"?`, false},
		{"wrong case below", with(`"limits":{"Wall_MS":1}`), field, "limits.Wall_MS", `did you mean "wall_ms"?`, false},
		{"unknown field", with(`"comand":"x"`), field, "comand", "is not a field of a request", false},
		{"unknown field below", with(`"retry":{"backoff":1}`), field, "retry.backoff", "is not a field", false},
		{"unknown field in a file", with(`"files":[{"path":"a","text":"","owner":"x"}]`), field, "files[0].owner", "is not a field", false},
		{"unknown field with null", with(`"nope":null`), field, "nope", "is not a field", false},
		{"unknown name with a line break", with(`"a\nb":1`), field, `["a\nb"]`, "is not a field", false},
		{"version missing", `{"argv":["a"]}`, version, "v", "is missing", false},
		{"version missing with unknown fields", `{"args":["a"]}`, version, "v", "is missing", false},
		{"version 99", `{"v":99,"argv":["a"]}`, version, "v", "must be the number 1, not 99", false},
		{"version 99 with unknown fields", `{"command":{"x":[null]},"v":99}`, version, "v", "not 99", false},
		{"version 99 behind depth", `{"x":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `,"v":99}`, version, "v", "not 99", false},
		{"version 0", `{"v":0,"argv":["a"]}`, version, "v", "not 0", false},
		{"version as string", `{"v":"1","argv":["a"]}`, version, "v", `not "1"`, false},
		{"version with fraction", `{"v":1.0,"argv":["a"]}`, version, "v", "not 1.0", true},
		{"version null", `{"v":null,"argv":["a"]}`, version, "v", "not null", false},
		{"version list", `{"v":[1],"argv":["a"]}`, version, "v", "not a list", false},
		{"deep list", strings.Repeat("[", 100_000), notJSON, "", "must be a JSON object", true},
		{"deep field", `{"v":1,"argv":` + strings.Repeat("[", 100_000), field, "", "nested more than", true},
		{"deep meta", with(`"meta":` + strings.Repeat(`{"a":`, 20) + "1" + strings.Repeat("}", 20)), field, "", "nested more than", false},
		{"too long", with(`"stdin":"` + strings.Repeat("x", wire.MaxRequestBytes) + `"`), wire.ReasonTooBig, "", "at most 8323072 bytes", true},
	}
}

func badStrings() []badRequest {
	const field, tooBig = wire.ReasonField, wire.ReasonTooBig
	long := strings.Repeat("x", wire.MaxArgBytes)
	return []badRequest{
		{"argv missing", `{"v":1}`, field, "argv", "must be a list of strings with at least one", false},
		{"argv null", argv("null"), field, "argv", "must be a list of strings, not null", false},
		{"argv empty", argv("[]"), field, "argv", "at least one", false},
		{"argv string", argv(`"ls -l"`), field, "argv", `must be a list of strings, not "ls -l"`, false},
		{"argv object", argv(`{}`), field, "argv", "not an object", false},
		{"argv with number", argv(`["a",5]`), field, "argv[1]", "must be a string, not 5", false},
		{"argv with null", argv(`["a",null]`), field, "argv[1]", "must be a string, not null", false},
		{"argv with list", argv(`["a",["b"]]`), field, "argv[1]", "must be a string, not a list", false},
		{"argv[0] empty", argv(`["","x"]`), field, "argv[0]", "must name a program", false},
		{"argv with NUL", argv(`["a","b\u0000c"]`), field, "argv[1]", "NUL", false},
		{"argument of 128 KiB", argv(`["a","` + long + `x"]`), tooBig, "argv[1]", "at most 131071 bytes, not 131072", false},
		{"argument of 128 KiB in bytes", argv(`["a","` + strings.Repeat("ä", 65536) + `"]`), tooBig, "argv[1]", "not 131072", true},
		{"too many arguments", manyArgs(wire.MaxArgs), tooBig, "argv", "at most 32768 elements", false},
		{"env null", with(`"env":null`), field, "env", "not null", false},
		{"env list", with(`"env":["A=1"]`), field, "env", "must be an object whose values are strings, not a list", false},
		{"env number", with(`"env":{"A":1}`), field, "env.A", "must be a string, not 1", false},
		{"env value null", with(`"env":{"A":null}`), field, "env.A", "must be a string, not null", false},
		{"env name empty", with(`"env":{"":"x"}`), field, "env", "empty name", false},
		{"env name with =", with(`"env":{"A=B":"x"}`), field, `env["A=B"]`, "'='", false},
		{"env name with NUL", with(`"env":{"A\u0000":"x"}`), field, `env["A\x00"]`, "NUL", false},
		{"env value with NUL", with(`"env":{"A":"\u0000"}`), field, "env.A", "NUL", false},
		{"env string of 128 KiB", with(`"env":{"A":"` + long + `"}`), tooBig, "env.A", "at most 131069 bytes", true},
		{"env name of 128 KiB", with(`"env":{"` + long + `x":""}`), tooBig, "env[" + quote(long[:64]) + "…]", "at most 0 bytes", true},
		{"too many variables", manyEnv(wire.MaxEnv + 1), tooBig, "env", "at most 4096 variables", false},
		{"meta null", with(`"meta":null`), field, "meta", "not null", false},
		{"meta number", with(`"meta":{"a":1}`), field, "meta.a", "must be a string", false},
		{"meta empty key", with(`"meta":{"":"a"}`), field, "meta", "empty key", false},
		{"meta too big", with(`"meta":{"a":"` + strings.Repeat("x", 4096) + `"}`), tooBig, "meta", "at most 4096 bytes", true},
		{"stdin number", with(`"stdin":5`), field, "stdin", "must be a string, not 5", false},
		{"stdin null", with(`"stdin":null`), field, "stdin", "not null", false},
		{"both stdins", with(`"stdin":"","stdin_base64":""`), field, "stdin_base64", "must not stand beside stdin", false},
		{"stdin_base64 wrong", with(`"stdin_base64":"%%%"`), field, "stdin_base64", "base64", false},
		{"stdin_base64 unpadded", with(`"stdin_base64":"YQ"`), field, "stdin_base64", "base64", false},
		{"stdin_base64 wrapped", with(`"stdin_base64":"YWFh\nYWFh"`), field, "stdin_base64", "without line breaks", false},
		{"stdin_base64 url alphabet", with(`"stdin_base64":"-_-_"`), field, "stdin_base64", "base64", false},
		{"stdin_base64 loose bits", with(`"stdin_base64":"YR=="`), field, "stdin_base64", "base64", true},
	}
}

func badLimits() []badRequest {
	const field, tooBig = wire.ReasonField, wire.ReasonTooBig
	limit := func(value string) string { return with(`"limits":{"wall_ms":` + value + `}`) }
	const wall = "must be a whole number of milliseconds from 1 to 604800000, not "
	all := []badRequest{
		{"wall zero", limit("0"), field, "limits.wall_ms", wall + "0", false},
		{"wall negative", limit("-1"), field, "limits.wall_ms", wall + "-1", false},
		{"wall fractional", limit("1.5"), field, "limits.wall_ms", wall + "1.5", false},
		{"wall 1.0", limit("1.0"), field, "limits.wall_ms", wall + "1.0", true},
		{"wall 1e3", limit("1e3"), field, "limits.wall_ms", wall + "1e3", true},
		{"wall string", limit(`"10s"`), field, "limits.wall_ms", wall + `"10s"`, false},
		{"wall null", limit("null"), field, "limits.wall_ms", wall + "null", false},
		{"wall true", limit("true"), field, "limits.wall_ms", wall + "true or false", false},
		{"wall list", limit("[1]"), field, "limits.wall_ms", wall + "a list", false},
		{"wall 2^63", limit("9223372036854775808"), field, "limits.wall_ms", wall + "9223372036854775808", false},
		{"wall 2^64", limit("18446744073709551617"), field, "limits.wall_ms", wall + "18446744073709551617", false},
		{"wall huge", limit("1" + strings.Repeat("0", 500)), field, "limits.wall_ms", wall + "1000", false},
		{"wall 2^63-1", limit("9223372036854775807"), tooBig, "limits.wall_ms", wall + "9223372036854775807", false},
		{"wall over a week", limit("604800001"), tooBig, "limits.wall_ms", wall + "604800001", false},
		{"grace over an hour", with(`"limits":{"grace_ms":3600001}`), tooBig, "limits.grace_ms", "from 1 to 3600000", false},
		{"limits null", with(`"limits":null`), field, "limits", "must be an object, not null", false},
		{"limits list", with(`"limits":[]`), field, "limits", "must be an object, not a list", false},
		{"max_attempts zero", with(`"retry":{"max_attempts":0}`), field, "retry.max_attempts", "from 1 to 10, not 0", false},
		{"max_attempts 11", with(`"retry":{"max_attempts":11}`), tooBig, "retry.max_attempts", "from 1 to 10, not 11", false},
		{"max_attempts fractional", with(`"retry":{"max_attempts":1.5}`), field, "retry.max_attempts", "from 1 to 10, not 1.5", false},
		{"if_lost string", with(`"retry":{"if_lost":"yes"}`), field, "retry.if_lost", `must be true or false, not "yes"`, false},
		{"priority negative", with(`"priority":-1`), field, "priority", "from 0 to 9, not -1", false},
		{"priority 10", with(`"priority":10`), tooBig, "priority", "from 0 to 9, not 10", false},
	}
	for _, name := range limitNames() {
		for _, value := range []string{"0", "-5", "0.5", `"1"`, "null", "99999999999999999999"} {
			all = append(all, badRequest{
				name + " " + value, with(`"limits":{"` + name + `":` + value + `}`),
				field, "limits." + name, "must be a whole number of ", false,
			})
		}
		all = append(all, badRequest{
			name + " over every ceiling", with(`"limits":{"` + name + `":9007199254740993}`),
			tooBig, "limits." + name, "must be a whole number of ", false,
		})
	}
	return all
}

func limitNames() []string {
	return []string{
		"wall_ms", "cpu_ms", "memory_bytes", "pids", "output_bytes", "disk_bytes", "inodes", "open_files",
		"cpu_share", "grace_ms",
	}
}

func badPlaces() []badRequest {
	const field, tooBig = wire.ReasonField, wire.ReasonTooBig
	file := func(members string) string { return with(`"files":[{` + members + `}]`) }
	path := func(p string) string { return file(`"path":` + quote(p) + `,"text":""`) }
	return []badRequest{
		{"cwd empty", with(`"cwd":""`), field, "cwd", "must not be empty", false},
		{"cwd null", with(`"cwd":null`), field, "cwd", "must be a string, not null", false},
		{"cwd with NUL", with(`"cwd":"/a\u0000"`), field, "cwd", "NUL", false},
		{"cwd leads out", with(`"cwd":"../x"`), field, "cwd", "not lead out of it", true},
		{"cwd leads out and back", with(`"cwd":"a/../../b"`), field, "cwd", "not lead out of it", true},
		{"cwd too long", with(`"cwd":"` + strings.Repeat("/abcdefg", 512) + `"`), tooBig, "cwd", "at most 4095 bytes, not 4096", false},
		{"cwd part too long", with(`"cwd":"/` + strings.Repeat("x", 256) + `"`), tooBig, "cwd", "at most 255 bytes between two slashes", true},
		{"files object", with(`"files":{}`), field, "files", "must be a list of objects, not an object", false},
		{"files null element", with(`"files":[null]`), field, "files[0]", "must be an object, not null", false},
		{"file without path", file(`"text":""`), field, "files[0].path", "not empty", false},
		{"file path empty", path(""), field, "files[0].path", "not empty", false},
		{"file path absolute", path("/etc/passwd"), field, "files[0].path", "relative to the workspace", false},
		{"file path leads out", path("../x"), field, "files[0].path", "does not lead out", true},
		{"file path is the workspace", path("."), field, "files[0].path", "path of a file", true},
		{"file path ends in a slash", path("a/"), field, "files[0].path", "path of a file", false},
		{"file path with NUL", path("a\x00"), field, "files[0].path", "NUL", false},
		{"file twice", with(`"files":[{"path":"a","text":""},{"path":"./a","text":""}]`), field, "files[1].path", "another element", true},
		{"file below a file", with(`"files":[{"path":"a","text":""},{"path":"a/b","text":""}]`), field, "files[1].path", "leads through", true},
		{"file where a directory is", with(`"files":[{"path":"a/b/c","text":""},{"path":"a/b","text":""}]`), field, "files[1].path", "directory on its way", true},
		{"file object leads out", file(`"path":"a","object":"../other/x"`), field, "files[0].object", "name of an object", true},
		{"file object with an empty segment", file(`"path":"a","object":"a//x"`), field, "files[0].object", "name of an object", true},
		{"file object absolute", file(`"path":"a","object":"/x"`), field, "files[0].object", "name of an object", true},
		{"file object with a line break", file(`"path":"a","object":"x\ny"`), field, "files[0].object", "name of an object", true},
		{"file object too long", file(`"path":"a","object":"` + strings.Repeat("x", wire.MaxObjectName+1) + `"`), field, "files[0].object", "256 bytes", false},
		{"collect too long together", with(`"collect":` + repeated(10, `"`+strings.Repeat("a/", 500)+`a"`)), tooBig, "collect", "8192 bytes", true},
		{"collect class over a slash", with(`"collect":["a[b/c]"]`), field, "collect[0]", "must be a pattern", true},
		{"file without content", file(`"path":"a"`), field, "files[0]", "exactly one of", false},
		{"file with two contents", file(`"path":"a","text":"","base64":""`), field, "files[0]", "exactly one of", false},
		{"file object empty", file(`"path":"a","object":""`), field, "files[0].object", "must not be empty", false},
		{"file base64 wrong", file(`"path":"a","base64":"x"`), field, "files[0].base64", "base64", false},
		{"file mode decimal", file(`"path":"a","text":"","mode":"0999"`), field, "files[0].mode", "octal", false},
		{"file mode setuid", file(`"path":"a","text":"","mode":"4755"`), field, "files[0].mode", "octal", false},
		{"file mode nothing", file(`"path":"a","text":"","mode":"0000"`), field, "files[0].mode", "not all 0", true},
		{"file mode number", file(`"path":"a","text":"","mode":420`), field, "files[0].mode", "must be a string, not 420", false},
		{"file mode empty", file(`"path":"a","text":"","mode":""`), field, "files[0].mode", "must not be empty", false},
		{"too many files", with(`"files":` + repeated(wire.MaxFiles+1, `{"path":"a","text":""}`)), tooBig, "files", "at most 1024", false},
		{"collect string", with(`"collect":"*"`), field, "collect", "must be a list of strings", false},
		{"collect empty element", with(`"collect":[""]`), field, "collect[0]", "not empty", false},
		{"collect absolute", with(`"collect":["/etc/*"]`), field, "collect[0]", "relative", false},
		{"collect leads out", with(`"collect":["a/../../*"]`), field, "collect[0]", "does not lead out", true},
		{"collect bad pattern", with(`"collect":["[a"]`), field, "collect[0]", "must be a pattern", true},
		{"too many collects", with(`"collect":` + repeated(wire.MaxCollect+1, `"a"`)), tooBig, "collect", "at most 64", false},
	}
}

func badChoices() []badRequest {
	const field = wire.ReasonField
	return []badRequest{
		{"output unknown", with(`"output":"file"`), field, "output", `one of stored, reply, both, inline, none, not "file"`, false},
		{"output empty", with(`"output":""`), field, "output", "must not be empty", false},
		{"output number", with(`"output":1`), field, "output", "one of stored, reply", false},
		{"output wrong case", with(`"output":"Inline"`), field, "output", `not "Inline"`, false},
		{"reuse unknown", with(`"lease":{"reuse":"always"}`), field, "lease.reuse", "one of never, tenant", false},
		{"reuse empty", with(`"lease":{"reuse":""}`), field, "lease.reuse", "must not be empty", false},
		{"profile empty", with(`"profile":""`), field, "profile", "must not be empty", false},
		{"profile no token", with(`"profile":"a.b"`), field, "profile", `not "a.b"`, false},
		{"profile too long", with(`"profile":"` + strings.Repeat("p", 65) + `"`), field, "profile", "1 to 64", false},
		{"deadline number", with(`"deadline":1700000000`), field, "deadline", "RFC 3339", false},
		{"deadline words", with(`"deadline":"tomorrow"`), field, "deadline", `RFC 3339, for instance 2026-01-31T12:00:00Z, not "tomorrow"`, false},
		{"deadline without zone", with(`"deadline":"2030-01-01T00:00:00"`), field, "deadline", "RFC 3339", false},
		{"deadline impossible day", with(`"deadline":"2030-02-30T00:00:00Z"`), field, "deadline", "RFC 3339", false},
		{"deadline year 1", with(`"deadline":"0001-01-01T00:00:00Z"`), field, "deadline", "1970", true},
		{"not_before null", with(`"not_before":null`), field, "not_before", "not null", false},
		{
			"not_before behind deadline", with(`"deadline":"2030-01-01T00:00:00Z","not_before":"2030-01-01T00:00:00Z"`),
			field, "not_before", "before the deadline", true,
		},
	}
}

func TestBadRequestsAreRefusedByField(t *testing.T) {
	for _, test := range badRequests() {
		t.Run(test.name, func(t *testing.T) {
			request, bad := wire.DecodeRequest([]byte(test.body))
			require.NotNil(t, bad)
			require.Nil(t, request)
			require.Equal(t, test.reason, bad.Reason, bad.Error())
			require.Equal(t, test.field, bad.Field, bad.Error())
			require.Contains(t, bad.Message, test.says)
			require.LessOrEqual(t, len(bad.Error()), 600, "a sender's own words flood the message")
			for _, internal := range []string{"json:", "jsontext", "Go ", "wire.", "strconv", "unmarshal", "reflect", "%!"} {
				require.NotContains(t, bad.Error(), internal)
			}
		})
	}
}

func TestBorderRequestsAreAccepted(t *testing.T) {
	long := strings.Repeat("x", wire.MaxArgBytes)
	schema := compile(t, "request.v1.json")
	for name, body := range map[string]string{
		"least":                  argv(`["true"]`),
		"white space around":     " \n" + argv(`["true"]`) + "\r\n\t ",
		"argument of the bound":  argv(`["a","` + long + `"]`),
		"arguments of the bound": manyArgs(wire.MaxArgs - 1),
		"variables of the bound": manyEnv(wire.MaxEnv),
		"env of the bound":       with(`"env":{"A":"` + long[2:] + `"}`),
		"empty values":           argv(`["a","",""]`),
		"env empty value":        with(`"env":{"A":""}`),
		"empty containers":       with(`"env":{},"meta":{},"files":[],"collect":[],"limits":{},"lease":{},"retry":{}`),
		"empty stdin":            with(`"stdin":""`),
		"empty stdin_base64":     with(`"stdin_base64":""`),
		"NUL in stdin":           with(`"stdin":"a\u0000b"`),
		"cwd absolute":           with(`"cwd":"/a/../b"`),
		"cwd relative":           with(`"cwd":"a/../b"`),
		"cwd is the workspace":   with(`"cwd":"."`),
		"cwd of the bound":       with(`"cwd":"/` + strings.Repeat("abcdefg/", 511) + `abcdef"`),
		"ceilings": with(`"limits":{"wall_ms":604800000,"cpu_ms":619315200000,"memory_bytes":17592186044416,"pids":4194304,` +
			`"output_bytes":1099511627776,"disk_bytes":17592186044416,"inodes":4294967296,"open_files":1048576,"cpu_share":102400,"grace_ms":3600000}`),
		"retry":                 with(`"retry":{"max_attempts":10,"if_lost":true}`),
		"priorities":            with(`"priority":0`),
		"meta of the bound":     with(`"meta":{"ab":"` + strings.Repeat("x", 4094) + `"}`),
		"deadline with offset":  with(`"deadline":"2030-01-01T00:00:00.123456789+02:00"`),
		"file modes":            with(`"files":[{"path":"a/b","text":"","mode":"0755"},{"path":"c","base64":"AA=="},{"path":"d","object":"bucket/key"}]`),
		"request of the bound":  with(`"stdin":"` + strings.Repeat("x", wire.MaxRequestBytes-len(with(`"stdin":""`))) + `"`),
		"unknown word in meta":  with(`"meta":{"anything.at all":"goes"}`),
		"odd variable name":     with(`"env":{"a b.c":"x"}`),
		"escaped name of field": `{"\u0076":1,"argv":["a"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			request, bad := wire.DecodeRequest([]byte(body))
			require.Nil(t, bad)
			require.NotNil(t, request)
			require.NoError(t, accepts(schema, []byte(body)), "the schema is stricter than the decoder")
		})
	}
}

func TestArgumentsAndVariablesAreCountedAsTheKernelCounts(t *testing.T) {
	request := &wire.Request{Argv: []string{"a"}}
	big := strings.Repeat("x", wire.MaxArgBytes)
	for range wire.MaxExecBytes / (len(big) + 9) {
		request.Argv = append(request.Argv, big)
	}
	request.V = wire.Version
	rest := wire.MaxExecBytes - (1 + 9) - (len(request.Argv)-1)*(len(big)+9)
	request.Env = map[string]string{"A": strings.Repeat("x", rest-len("A=")-9)}
	require.Nil(t, request.Validate())
	request.Env["A"] += "x"
	bad := request.Validate()
	require.NotNil(t, bad)
	require.Equal(t, wire.ReasonTooBig, bad.Reason)
	require.Contains(t, bad.Message, "argv and env together must have at most 2031616 bytes")
}

func TestADecodedRequestHoldsEverything(t *testing.T) {
	request, bad := wire.DecodeRequest(golden(t, "request_full.json"))
	require.Nil(t, bad)
	require.Equal(t, fullRequest(), request)
}

func TestEncodingARequestRefusesABadOne(t *testing.T) {
	_, err := wire.EncodeRequest(&wire.Request{Argv: []string{"a", "b\x00"}})
	var bad *wire.Invalid
	require.ErrorAs(t, err, &bad)
	require.Equal(t, "argv[1]", bad.Field)

	_, err = wire.EncodeRequest(&wire.Request{Argv: []string{"a", "\xff"}})
	require.ErrorAs(t, err, &bad)
	require.Equal(t, "argv[1]", bad.Field)

	stdin := strings.Repeat("x", wire.MaxRequestBytes)
	_, err = wire.EncodeRequest(&wire.Request{Argv: []string{"a"}, Stdin: &stdin})
	require.ErrorAs(t, err, &bad)
	require.Equal(t, wire.ReasonTooBig, bad.Reason)
}

func TestDepthBombIsFlatInMemoryAndTime(t *testing.T) {
	for name, body := range map[string][]byte{
		"list":            []byte(strings.Repeat("[", 100_000)),
		"field":           []byte(`{"v":1,"argv":` + strings.Repeat("[", 900_000)),
		"objects":         []byte(`{"v":1,"x":` + strings.Repeat(`{"a":`, 180_000)),
		"many nulls":      []byte(`{"v":1,"x":` + strings.Repeat("[", 9000) + strings.Repeat("null,", 150_000)),
		"many empties":    []byte(`{"v":1,"x":` + strings.Repeat("[", 9000) + strings.Repeat(`"",`, 200_000)),
		"many empties up": []byte(`{"v":1,"x":[` + strings.Repeat(`"",`, 300_000)),
		"many names":      append(bytes.TrimSuffix([]byte(manyEnv(60_000)), []byte("}}")), `,"N0":""}}`...),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, bad := wire.DecodeRequest(body)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			require.NotNil(t, bad)
			t.Logf("%d bytes: %v, %d KiB allocated: %v", len(body), took, (after.TotalAlloc-before.TotalAlloc)>>10, bad)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
			// Generous: the race detector on a busy machine. Quadratic work would take
			// minutes.
			require.Less(t, took, 5*time.Second)
		})
	}
}

func TestMaxAttemptsAndMode(t *testing.T) {
	require.Equal(t, 1, (&wire.Request{}).MaxAttempts())
	require.Equal(t, 2, (&wire.Request{Retry: wire.Retry{IfLost: true}}).MaxAttempts())
	require.Equal(t, 7, (&wire.Request{Retry: wire.Retry{IfLost: true, MaxAttempts: new(7)}}).MaxAttempts())
	require.Equal(t, wire.OutputReply, (&wire.Request{}).Mode(true))
	require.Equal(t, wire.OutputStored, (&wire.Request{}).Mode(false))
	require.Equal(t, wire.OutputInline, (&wire.Request{Output: wire.OutputInline}).Mode(true))
}

func TestInput(t *testing.T) {
	data, given := (&wire.Request{}).Input()
	require.False(t, given)
	require.Empty(t, data)
	data, given = (&wire.Request{Stdin: new("")}).Input()
	require.True(t, given)
	require.Empty(t, data)
	data, given = (&wire.Request{StdinBase64: new("/wA=")}).Input()
	require.True(t, given)
	require.Equal(t, []byte{0xff, 0}, data)
}

func TestDigest(t *testing.T) {
	body := `{"v":1,"argv":["a"],"limits":{"wall_ms":1000}}`
	digest, err := wire.Digest("default", []byte(body))
	require.NoError(t, err)
	require.Regexp(t, "^[0-9a-f]{64}$", digest)
	for name, same := range map[string]string{
		"white space": "{ \"v\" : 1,\n \"argv\":[\"a\"],\"limits\":{\"wall_ms\":1000} }",
		"order":       `{"limits":{"wall_ms":1000},"argv":["a"],"v":1}`,
		"escapes":     `{"v":1,"argv":["\u0061"],"limits":{"wall_ms":1000}}`,
	} {
		other, err := wire.Digest("default", []byte(same))
		require.NoError(t, err)
		require.Equal(t, digest, other, name)
	}
	for name, different := range map[string][2]string{
		"queue":    {"other", body},
		"argument": {"default", `{"v":1,"argv":["b"],"limits":{"wall_ms":1000}}`},
		"limit":    {"default", `{"v":1,"argv":["a"],"limits":{"wall_ms":1001}}`},
	} {
		other, err := wire.Digest(different[0], []byte(different[1]))
		require.NoError(t, err)
		require.NotEqual(t, digest, other, name)
	}
	kept := []byte(`{"b":1, "a":2}`)
	_, err = wire.Digest("q", kept)
	require.NoError(t, err)
	require.Equal(t, `{"b":1, "a":2}`, string(kept), "the body must not change")
	for _, broken := range []string{"", "{", `{"a":1,"a":2}`, "\xff"} {
		_, err = wire.Digest("q", []byte(broken))
		require.EqualError(t, err, "digest: the body is not valid JSON")
	}
}

func BenchmarkDecodeRequest(b *testing.B) {
	for name, body := range map[string][]byte{
		"minimal": golden(b, "request_minimal.json"), "full": golden(b, "request_full.json"), "900 KiB": []byte(with(`"stdin":"` + strings.Repeat("x", 900<<10) + `"`)),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				_, bad := wire.DecodeRequest(body)
				require.Nil(b, bad)
			}
		})
	}
}

func BenchmarkEncodeResult(b *testing.B) {
	result := results()["result_exited.json"]
	b.ReportAllocs()
	for b.Loop() {
		_, err := wire.EncodeResult(result)
		require.NoError(b, err)
	}
}
