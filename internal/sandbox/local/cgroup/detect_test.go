package cgroup_test

import (
	"maps"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
)

const (
	mountV2       = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
	mountRoot     = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
	mountV1Memory = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
	mountV1Pids   = "39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n"
	mountV1CPU    = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
	mountUnified  = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)

// hostFiles are the files that Detect reads.
type hostFiles struct {
	cgroup.OS // nothing of it is called
	texts     map[string]string
}

func (h hostFiles) ReadFile(name string) ([]byte, error) {
	text, ok := h.texts[name]
	if !ok {
		return nil, fail("open", name, 2)
	}
	return []byte(text), nil
}

type detectCase struct {
	name       string
	membership string
	mountinfo  string
	files      map[string]string
	layout     string
	// dir of each hierarchy, or "!" and a piece of the reason.
	unified, memory, pids, cpu string
}

func detectCases() []detectCase {
	const v1Members = "9:name=systemd:/\n4:memory:/w/a\n8:pids:/\n1:cpu,cpuacct:/\n"
	v2 := func(dir, controllers string) map[string]string {
		return map[string]string{path.Join(mount, dir, "cgroup.controllers"): controllers + "\n"}
	}
	return []detectCase{
		{
			name: "pure v2 at the root", membership: "0::/\n", mountinfo: mountRoot + mountV2,
			files: v2("", "cpuset cpu io memory pids"), layout: "v2",
			unified: mount, memory: mount, pids: mount, cpu: mount,
		},
		{
			name: "v2 in a systemd service with Delegate=yes", membership: "0::/system.slice/sallyport.service\n", mountinfo: mountV2,
			files: v2("system.slice/sallyport.service", "cpu memory pids"), layout: "v2",
			unified: mount + "/system.slice/sallyport.service", memory: mount + "/system.slice/sallyport.service",
			pids: mount + "/system.slice/sallyport.service", cpu: mount + "/system.slice/sallyport.service",
		},
		{
			name: "v2 with DelegateSubgroup=worker", membership: "0::/system.slice/s.service/worker\n", mountinfo: mountV2,
			files: map[string]string{
				mount + "/system.slice/s.service/cgroup.procs":       "",
				mount + "/system.slice/s.service/cgroup.controllers": "cpu memory pids\n",
			},
			layout: "v2", unified: mount + "/system.slice/s.service", memory: mount + "/system.slice/s.service",
			pids: mount + "/system.slice/s.service", cpu: mount + "/system.slice/s.service",
		},
		{
			name: "a leaf that is called worker beside processes in the group above", membership: "0::/jobs/worker\n", mountinfo: mountV2,
			files: map[string]string{
				mount + "/jobs/cgroup.procs":              "17\n",
				mount + "/jobs/worker/cgroup.controllers": "memory\n",
			},
			layout: "v2", unified: mount + "/jobs/worker", memory: mount + "/jobs/worker",
			pids: "!pids controller is not offered", cpu: "!cpu controller is not offered",
		},
		{
			name: "v2 delegated to an ordinary user without cpu", membership: "0::/user.slice/user-1234.slice/user@1234.service/app.slice/run.scope\n",
			mountinfo: mountV2, files: v2("user.slice/user-1234.slice/user@1234.service/app.slice/run.scope", "memory pids"), layout: "v2",
			unified: mount + "/user.slice/user-1234.slice/user@1234.service/app.slice/run.scope",
			memory:  mount + "/user.slice/user-1234.slice/user@1234.service/app.slice/run.scope",
			pids:    mount + "/user.slice/user-1234.slice/user@1234.service/app.slice/run.scope",
			cpu:     "!the cpu controller is not offered to " + mount + "/user.slice",
		},
		{
			name: "pure v1", membership: v1Members, mountinfo: mountV1Memory + mountV1Pids + mountV1CPU, layout: "v1",
			unified: "!no cgroup v2", memory: mount + "/memory/w/a", pids: mount + "/pids", cpu: mount + "/cpu,cpuacct",
		},
		{
			name: "v1 with a bare v2 tree beside it", membership: v1Members + "0::/\n",
			mountinfo: mountV1Memory + mountV1Pids + mountV1CPU + mountUnified, files: map[string]string{mount + "/unified/cgroup.controllers": "\n"},
			layout: "hybrid", unified: mount + "/unified", memory: mount + "/memory/w/a", pids: mount + "/pids", cpu: mount + "/cpu,cpuacct",
		},
		{
			name: "hybrid with the controllers split", membership: "4:memory:/\n0::/w\n", mountinfo: mountV1Memory + mountUnified,
			files:  map[string]string{mount + "/unified/w/cgroup.controllers": "cpu pids\n"},
			layout: "hybrid", unified: mount + "/unified/w", memory: mount + "/memory", pids: mount + "/unified/w", cpu: mount + "/unified/w",
		},
		{
			name: "docker on v2 with its own cgroup namespace, read-only", membership: "0::/\n",
			mountinfo: "651 650 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate\n",
			files:     v2("", "cpu memory pids"), layout: "v2",
			unified: "!mounted read-only", memory: "!mounted read-only", pids: "!mounted read-only", cpu: "!mounted read-only",
		},
		{
			name:       "docker on v1, bound to its own group",
			membership: "4:memory:/docker/ab12\n8:pids:/docker/ab12\n1:cpu,cpuacct:/docker/ab12\n",
			mountinfo: "35 31 0:32 /docker/ab12 /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory\n" +
				"39 31 0:36 /docker/ab12 /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n" +
				"32 31 0:29 /docker/other /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n",
			layout: "v1", unified: "!no cgroup v2", memory: "!mounted read-only", pids: mount + "/pids",
			cpu: "!not below any mount",
		},
		{
			name: "the host's namespace, of which a container sees nothing", membership: "0::/../../system.slice/x\n", mountinfo: mountV2, layout: "v2",
			unified: "!not below any mount", memory: "!not below any mount", pids: "!not below any mount", cpu: "!not below any mount",
		},
		{
			name: "own group removed", membership: "0::/gone (deleted)\n", mountinfo: mountV2, layout: "v2",
			unified: "!was removed", memory: "!was removed", pids: "!was removed", cpu: "!was removed",
		},
		{
			name: "read-only mount hides under a writable one elsewhere", membership: "0::/w\n",
			mountinfo: "30 23 0:26 / /ro ro,relatime - cgroup2 cgroup2 rw\n31 23 0:26 / /rw\\040x rw,relatime - cgroup2 cgroup2 rw\n",
			files:     map[string]string{"/rw x/w/cgroup.controllers": "cpu memory pids"}, layout: "v2",
			unified: "/rw x/w", memory: "/rw x/w", pids: "/rw x/w", cpu: "/rw x/w",
		},
		{
			name: "a later mount covers the first", membership: "0::/a/b\n",
			mountinfo: mountV2 + "31 23 0:26 /a /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n",
			files:     map[string]string{mount + "/b/cgroup.controllers": "memory pids cpu"}, layout: "v2",
			unified: mount + "/b", memory: mount + "/b", pids: mount + "/b", cpu: mount + "/b",
		},
		{
			name: "nothing mounted", membership: v1Members + "0::/\n", mountinfo: mountRoot, layout: "hybrid",
			unified: "!not mounted here", memory: "!not mounted here", pids: "!not mounted here", cpu: "!not mounted here",
		},
		{
			name: "a kernel without control groups", membership: "", mountinfo: mountRoot, layout: "none",
			unified: "!no cgroup v2", memory: "!no hierarchy has the memory controller", pids: "!no hierarchy", cpu: "!no hierarchy",
		},
	}
}

func TestDetect(t *testing.T) {
	t.Parallel()
	for _, c := range detectCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			files := hostFiles{texts: map[string]string{"/proc/self/cgroup": c.membership, "/proc/self/mountinfo": c.mountinfo}}
			maps.Copy(files.texts, c.files)
			host, err := cgroup.Detect(files)
			require.NoError(t, err)
			require.Equal(t, c.layout, host.Layout())
			for _, check := range []struct {
				name, want string
				got        cgroup.Place
			}{{"unified", c.unified, host.Unified}, {"memory", c.memory, host.Memory}, {"pids", c.pids, host.Pids}, {"cpu", c.cpu, host.CPU}} {
				if why, refused := strings.CutPrefix(check.want, "!"); refused {
					require.Contains(t, check.got.Why, why, check.name)
					require.NotEmpty(t, check.got.Fix, "%s: a person needs a way out", check.name)
					continue
				}
				require.Empty(t, check.got.Why, check.name)
				require.Equal(t, check.want, check.got.Dir, check.name)
			}
		})
	}
}

func TestDetectReportsUnreadableProc(t *testing.T) {
	t.Parallel()
	_, err := cgroup.Detect(hostFiles{texts: map[string]string{}})
	require.ErrorContains(t, err, "/proc/self/cgroup")
	_, err = cgroup.Detect(hostFiles{texts: map[string]string{"/proc/self/cgroup": "0::/\n"}})
	require.ErrorContains(t, err, "/proc/self/mountinfo")
	_, err = cgroup.Detect(hostFiles{texts: map[string]string{"/proc/self/cgroup": "nonsense\n", "/proc/self/mountinfo": ""}})
	require.ErrorContains(t, err, `"nonsense" is not hierarchy:controllers:/path`)
	_, err = cgroup.Detect(hostFiles{texts: map[string]string{"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": "1 2 3\n"}})
	require.ErrorContains(t, err, "too few fields")
}

func TestParseMemberships(t *testing.T) {
	t.Parallel()
	got, err := cgroup.ParseMemberships([]byte("12:cpu,cpuacct:/a b\n1:name=systemd:/x:y\n0::/gone (deleted)\n"))
	require.NoError(t, err)
	require.Equal(t, []cgroup.Membership{
		{Hierarchy: 12, Controllers: []string{"cpu", "cpuacct"}, Path: "/a b"},
		{Hierarchy: 1, Controllers: []string{"name=systemd"}, Path: "/x:y"},
		{Path: "/gone", Deleted: true},
	}, got)
	for _, bad := range []string{"0:/\n", "x::/\n", "-1::/\n", "0::relative\n", "::\n"} {
		_, err := cgroup.ParseMemberships([]byte(bad))
		require.Error(t, err, "%q", bad)
	}
}

func TestParseMountinfo(t *testing.T) {
	t.Parallel()
	got, err := cgroup.ParseMountinfo([]byte(mountRoot +
		`41 31 0:38 /a\134b /m\040n ro,relatime shared:1 master:2 - cgroup2  rw,nsdelegate` + "\n"))
	require.NoError(t, err)
	require.Equal(t, []cgroup.Mount{{
		Root: `/a\b`, Point: "/m n", Type: "cgroup2", ReadOnly: true, Options: []string{"rw", "nsdelegate"},
	}}, got)
	for _, bad := range []string{"41 31 0:38 / /x rw cgroup2 x rw\n", "41 31 - cgroup2 cgroup2 rw\n", "41 31 0:38 / /x rw - cgroup2\n"} {
		_, err := cgroup.ParseMountinfo([]byte(bad))
		require.Error(t, err, "%q", bad)
	}
}

// FuzzDetect: whatever the texts say, a place is either usable, absolute and free
// of "..", or it says why not and what to do.
func FuzzDetect(f *testing.F) {
	for _, c := range detectCases() {
		f.Add(c.membership, c.mountinfo, "cpu memory pids")
	}
	f.Add("0::/..\n", "1 1 1 /.. /\\057\\056\\056 rw - cgroup2 x rw\n", "")
	f.Fuzz(func(t *testing.T, membership, mountinfo, controllers string) {
		host, err := cgroup.Detect(everywhere{membership: membership, mountinfo: mountinfo, controllers: controllers})
		if err != nil {
			return
		}
		require.Contains(t, []string{"v1", "v2", "hybrid", "none"}, host.Layout())
		for _, place := range []cgroup.Place{host.Unified, host.Memory, host.Pids, host.CPU} {
			if place.Why != "" {
				require.NotEmpty(t, place.Fix)
				continue
			}
			require.Contains(t, []int{1, 2}, place.Version)
			require.NotEmpty(t, place.Dir)
		}
	})
}

// everywhere answers for any group.
type everywhere struct {
	cgroup.OS
	membership, mountinfo, controllers string
}

func (e everywhere) ReadFile(name string) ([]byte, error) {
	switch {
	case name == "/proc/self/cgroup":
		return []byte(e.membership), nil
	case name == "/proc/self/mountinfo":
		return []byte(e.mountinfo), nil
	case strings.HasSuffix(name, "/cgroup.controllers"):
		return []byte(e.controllers), nil
	}
	return nil, fail("open", name, 2)
}
