package wire_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// badRecord is a golden record with one fault.
type badRecord struct {
	name string
	// from is the golden file, set the fields that are put into it; nil takes one
	// out.
	from string
	set  map[string]any
	// want is a part of the error.
	want string
	// semantic marks what a JSON Schema cannot say.
	semantic bool
}

func (b badRecord) body(t *testing.T) []byte {
	t.Helper()
	fields := map[string]any{}
	require.NoError(t, json.Unmarshal(golden(t, b.from), &fields))
	for name, value := range b.set {
		if value == nil {
			delete(fields, name)
			continue
		}
		fields[name] = value
	}
	data, err := json.Marshal(fields)
	require.NoError(t, err)
	return data
}

func badLeases() []badRecord {
	const intent, ready, used, gone = "lease_intent.json", "lease_ready.json", "lease_in_use.json", "lease_destroyed.json"
	set := func(pairs ...any) map[string]any {
		fields := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			fields[pairs[i].(string)] = pairs[i+1] //nolint:errcheck,forcetypeassert // the tables' own keys
		}
		return fields
	}
	list := []badRecord{
		{name: "no version", from: ready, set: set("v", nil), want: "v: is missing"},
		{name: "newer version", from: ready, set: set("v", 2, "colour", "blue"), want: "v: must be the number 1, not 2"},
		{name: "version in quotes", from: ready, set: set("v", "1"), want: "v: must be the number 1"},
		{name: "unknown field", from: ready, set: set("colour", "blue"), want: "colour: is not a field of a ledger entry"},
		{name: "other case", from: ready, set: set("Lease", "x"), want: `did you mean "lease"?`},
		{name: "unknown state", from: ready, set: set("state", "lost"), want: "state: must be one of intent, ready"},
		{name: "no state", from: ready, set: set("state", nil), want: "state: must be one of"},
		{name: "state is a number", from: ready, set: set("state", 1), want: "state: must be a string, not 1"},
		{name: "provider of epochs", from: ready, set: set("provider", "_worker"), want: `provider: must not be "_worker"`, semantic: true},
		{name: "tenant with dots", from: used, set: set("tenant", "a.b"), want: "tenant: must be"},
		{name: "job of three", from: used, set: set("job", "a.b.c"), want: "job: must be a job's id"},
		{name: "job without tenant", from: used, set: set("state", "ready", "tenant", nil, "uses", nil), want: "job: must not stand"},
		{name: "used by nobody", from: used, set: set("tenant", nil, "job", nil), want: "tenant: must stand beside uses"},
		{name: "tenant without use", from: ready, set: set("tenant", "acme"), want: "tenant: must stand beside uses"},
		{name: "in use without use", from: used, set: set("uses", nil), want: "uses: must be at least 1"},
		{name: "negative uses", from: used, set: set("uses", -1), want: "uses: must not be negative"},
		{name: "fraction of a use", from: used, set: set("uses", 1.5), want: "uses: must be a whole number"},
		{name: "used intent", from: intent, set: set("uses", 1, "tenant", "acme"), want: "uses: must not stand in the state intent"},
		{name: "handle is a list", from: ready, set: set("handle", []string{"a"}), want: "handle: must be an object"},
		{name: "handle of numbers", from: ready, set: set("handle", set("a", 1)), want: "handle.a: must be a string"},
		{name: "handle too big", from: ready, set: set("handle", set("a", strings.Repeat("x", 4096))), want: "handle: must have at most 32 entries and 4096 bytes", semantic: true},
		{name: "message too long", from: ready, set: set("message", strings.Repeat("x", wire.MaxMessageBytes+1)), want: "message: must have at most"},
		{name: "no intent", from: ready, set: set("intended", nil), want: "intended: must be set"},
		{name: "bad time", from: ready, set: set("intended", "yesterday"), want: "intended: must be a time"},
		{name: "destroyed without time", from: gone, set: set("destroyed_at", nil), want: "destroyed_at: must stand"},
		{name: "destroyed without evidence", from: gone, set: set("evidence", nil), want: "evidence: must not be empty"},
		{name: "destroyed with no evidence", from: gone, set: set("evidence", []any{}), want: "evidence: must not be empty"},
		{name: "evidence of no kind", from: gone, set: set("evidence", []any{set("kind", "")}), want: "evidence[0].kind: must be"},
		{name: "time but alive", from: ready, set: set("destroyed_at", "2026-05-06T08:00:00Z"), want: "destroyed_at: must stand"},
	}
	for _, word := range []string{"lease", "provider", "host", "profile", "worker", "epoch"} {
		list = append(list,
			badRecord{name: "no " + word, from: ready, set: set(word, nil), want: word + ": must be 1 to 64"},
			badRecord{name: word + " with dots", from: ready, set: set(word, "a.b"), want: word + ": must be 1 to 64"},
			badRecord{name: word + " too long", from: ready, set: set(word, strings.Repeat("x", 65)), want: word + ": must be 1 to 64"},
		)
	}
	return list
}

func badEpochs() []badRecord {
	const alive = "epoch_alive.json"
	list := []badRecord{
		{name: "newer version", from: alive, set: map[string]any{"v": 2}, want: "v: must be the number 1, not 2"},
		{name: "unknown field", from: alive, set: map[string]any{"x": 1}, want: "x: is not a field of a worker's epoch"},
		{name: "unknown state", from: alive, set: map[string]any{"state": "dead"}, want: "state: must be one of alive, ended"},
		{name: "no start", from: alive, set: map[string]any{"started": nil}, want: "started: must be set"},
		{name: "no bound", from: alive, set: map[string]any{"bound_ms": nil}, want: "bound_ms: must be a whole number of milliseconds from 1 to 86400000, not 0"},
		{name: "negative bound", from: alive, set: map[string]any{"bound_ms": -1}, want: "bound_ms: must be"},
		{name: "bound of two days", from: alive, set: map[string]any{"bound_ms": 2 * 86_400_000}, want: "bound_ms: must be"},
		{name: "bound beyond an int64", from: alive, set: map[string]any{"bound_ms": 1e19}, want: "bound_ms: must be a whole number"},
		{name: "negative renewals", from: alive, set: map[string]any{"renewals": -1}, want: "renewals: must not be negative"},
		{name: "version too long", from: alive, set: map[string]any{"version": strings.Repeat("x", 257)}, want: "version: must be UTF-8 text of at most 256 bytes"},
	}
	for _, word := range []string{"worker", "epoch", "host"} {
		list = append(list, badRecord{name: "no " + word, from: alive, set: map[string]any{word: nil}, want: word + ": must be 1 to 64"})
	}
	return list
}

func TestBadLeasesAreRefused(t *testing.T) {
	for _, test := range badLeases() {
		_, err := wire.DecodeLease(test.body(t))
		require.ErrorContains(t, err, "decode ledger entry: ", test.name)
		require.ErrorContains(t, err, test.want, test.name)
		require.Equal(t, strings.Contains(test.name, "version"), wire.OtherVersion(err), test.name)
	}
}

func TestBadEpochsAreRefused(t *testing.T) {
	for _, test := range badEpochs() {
		_, err := wire.DecodeEpoch(test.body(t))
		require.ErrorContains(t, err, "decode worker's epoch: ", test.name)
		require.ErrorContains(t, err, test.want, test.name)
		require.Equal(t, test.name == "newer version", wire.OtherVersion(err), test.name)
	}
}

func TestRecordsOfAnotherVersionAreToldApart(t *testing.T) {
	newer := func(name string) []byte {
		return []byte(strings.Replace(string(golden(t, name)), `"v":1`, `"v":2`, 1))
	}
	_, err := wire.DecodeQuarantine(newer("quarantine_fresh.json"))
	require.True(t, wire.OtherVersion(err))
	_, err = wire.DecodeRunRecord(newer("run_claimed.json"))
	require.True(t, wire.OtherVersion(err))
	_, err = wire.DecodeLease([]byte(`{"v":1}`))
	require.Error(t, err)
	require.False(t, wire.OtherVersion(err))
	require.False(t, wire.OtherVersion(nil))
}

func TestEncodingALedgerEntryTidies(t *testing.T) {
	long := *leases()["lease_ready.json"]
	long.V = 0
	long.Message = strings.Repeat("ä", 1<<20)
	long.Evidence = make([]wire.Evidence, 1000)
	long.Evidence[0] = wire.Evidence{Kind: "not a token", Detail: strings.Repeat("x", 1<<20)}
	data, err := wire.EncodeLease(&long)
	require.NoError(t, err)
	require.Less(t, len(data), 16<<10)
	back, err := wire.DecodeLease(data)
	require.NoError(t, err)
	require.Equal(t, 1, back.V)
	require.Len(t, back.Evidence, wire.MaxEvidence)
	require.Len(t, long.Evidence, 1000, "the caller's record must not change")

	long.Handle = map[string]string{"id": "\xff"}
	_, err = wire.EncodeLease(&long)
	require.ErrorContains(t, err, "encode ledger entry: handle.id: must be UTF-8 text")
}

func TestTheGreatestLedgerEntryFitsItsRecord(t *testing.T) {
	greatest := *leases()["lease_destroyed.json"]
	greatest.Message = strings.Repeat("\x01", wire.MaxMessageBytes)
	greatest.Handle = map[string]string{"h": strings.Repeat("\x01", 4095)}
	greatest.Evidence = make([]wire.Evidence, wire.MaxEvidence)
	for i := range greatest.Evidence {
		greatest.Evidence[i] = wire.Evidence{Kind: strings.Repeat("k", 64), Detail: strings.Repeat("\x01", wire.MaxMessageBytes)}
	}
	data, err := wire.EncodeLease(&greatest)
	require.NoError(t, err)
	require.Less(t, len(data), wire.MaxRecordBytes)
	back, err := wire.DecodeLease(data)
	require.NoError(t, err)
	require.Equal(t, greatest.Handle, back.Handle)
}

func TestAnEpochLapsesAfterTwiceItsBound(t *testing.T) {
	record := *epochs()["epoch_alive.json"]
	require.Equal(t, 30*time.Second, record.Bound())
	require.Equal(t, time.Minute, record.Lapse())
}
