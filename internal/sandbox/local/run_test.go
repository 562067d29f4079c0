package local_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHello(t *testing.T) {
	for _, groups := range []bool{false, true} {
		p := provider(t, groups)
		box := create(t, p)
		r := run(t, box, shell("echo hello; echo oops >&2; exit 3"))
		requireExit(t, 3, r)
		require.Equal(t, "hello\n", r.stdout)
		require.Equal(t, "oops\n", r.stderr)
		t.Logf("%+v", r.End)
		r = run(t, box, shell("id; ls -la / /dev /workspace /etc; cat /proc/self/status | grep -E 'Cap|Sig|NoNew|Shd'; ps aux; ulimit -a; cat /proc/self/oom_score_adj; env; pwd; umask; ls -l /proc/self/fd; hostname; cat /proc/self/mounts"))
		t.Log(r.stdout, r.stderr)
		requireGone(t, box)
	}
}
