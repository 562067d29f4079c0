package sandbox_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sallyport/sallyport/internal/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lifeOfALease has one line for every pair of state and event: where it leads
// and what is to be done. A dash is an event that cannot happen there.
const lifeOfALease = `
creating    created           confirming confirm
creating    create_refused    gone give_back close
creating    create_ambiguous  destroying destroy
creating    create_abandoned  abandoned
creating    create_unanswered -
creating    confirmed         -
creating    acquired          -
creating    marked            -
creating    unmarked          -
creating    unconfirmed       -
creating    overtaken         -
creating    disowned          abandoned
creating    released          -
creating    used_up           -
creating    unproven          -
creating    ambiguous_start   -
creating    owner_gone        -
creating    reset             -
creating    reset_failed      -
creating    lost              -
creating    retired           -
creating    destroyed         -
creating    destroy_unproven  -
creating    acknowledged      -
creating    reaped            -

abandoned   created           destroying destroy
abandoned   create_refused    gone give_back close
abandoned   create_ambiguous  destroying destroy
abandoned   create_abandoned  -
abandoned   create_unanswered poisoned quarantine
abandoned   confirmed         -
abandoned   acquired          -
abandoned   marked            -
abandoned   unmarked          -
abandoned   unconfirmed       -
abandoned   overtaken         -
abandoned   disowned          abandoned
abandoned   released          -
abandoned   used_up           -
abandoned   unproven          -
abandoned   ambiguous_start   -
abandoned   owner_gone        -
abandoned   reset             -
abandoned   reset_failed      -
abandoned   lost              -
abandoned   retired           -
abandoned   destroyed         -
abandoned   destroy_unproven  -
abandoned   acknowledged      -
abandoned   reaped            -

confirming  created           -
confirming  create_refused    -
confirming  create_ambiguous  -
confirming  create_abandoned  -
confirming  create_unanswered -
confirming  confirmed         idle
confirming  acquired          -
confirming  marked            -
confirming  unmarked          -
confirming  unconfirmed       destroying destroy
confirming  overtaken         destroying destroy
confirming  disowned          destroying destroy
confirming  released          -
confirming  used_up           -
confirming  unproven          -
confirming  ambiguous_start   -
confirming  owner_gone        -
confirming  reset             -
confirming  reset_failed      -
confirming  lost              -
confirming  retired           -
confirming  destroyed         -
confirming  destroy_unproven  -
confirming  acknowledged      -
confirming  reaped            -

idle        created           -
idle        create_refused    -
idle        create_ambiguous  -
idle        create_abandoned  -
idle        create_unanswered -
idle        confirmed         -
idle        acquired          reserved
idle        marked            -
idle        unmarked          -
idle        unconfirmed       -
idle        overtaken         -
idle        disowned          destroying destroy
idle        released          -
idle        used_up           -
idle        unproven          -
idle        ambiguous_start   -
idle        owner_gone        -
idle        reset             -
idle        reset_failed      -
idle        lost              destroying destroy
idle        retired           destroying destroy
idle        destroyed         -
idle        destroy_unproven  -
idle        acknowledged      -
idle        reaped            -

reserved    created           -
reserved    create_refused    -
reserved    create_ambiguous  -
reserved    create_abandoned  -
reserved    create_unanswered -
reserved    confirmed         -
reserved    acquired          -
reserved    marked            in_use
reserved    unmarked          idle
reserved    unconfirmed       destroying destroy
reserved    overtaken         destroying destroy
reserved    disowned          destroying destroy
reserved    released          -
reserved    used_up           -
reserved    unproven          -
reserved    ambiguous_start   -
reserved    owner_gone        -
reserved    reset             -
reserved    reset_failed      -
reserved    lost              -
reserved    retired           -
reserved    destroyed         -
reserved    destroy_unproven  -
reserved    acknowledged      -
reserved    reaped            -

in_use      created           -
in_use      create_refused    -
in_use      create_ambiguous  -
in_use      create_abandoned  -
in_use      create_unanswered -
in_use      confirmed         -
in_use      acquired          -
in_use      marked            -
in_use      unmarked          -
in_use      unconfirmed       -
in_use      overtaken         -
in_use      disowned          in_use
in_use      released          resetting reset
in_use      used_up           destroying destroy
in_use      unproven          poisoned quarantine
in_use      ambiguous_start   poisoned quarantine
in_use      owner_gone        poisoned quarantine
in_use      reset             -
in_use      reset_failed      -
in_use      lost              in_use
in_use      retired           -
in_use      destroyed         -
in_use      destroy_unproven  -
in_use      acknowledged      -
in_use      reaped            -

resetting   created           -
resetting   create_refused    -
resetting   create_ambiguous  -
resetting   create_abandoned  -
resetting   create_unanswered -
resetting   confirmed         -
resetting   acquired          -
resetting   marked            -
resetting   unmarked          -
resetting   unconfirmed       -
resetting   overtaken         -
resetting   disowned          destroying destroy
resetting   released          -
resetting   used_up           -
resetting   unproven          -
resetting   ambiguous_start   -
resetting   owner_gone        -
resetting   reset             idle
resetting   reset_failed      poisoned quarantine
resetting   lost              destroying destroy
resetting   retired           -
resetting   destroyed         -
resetting   destroy_unproven  -
resetting   acknowledged      -
resetting   reaped            -

destroying  created           -
destroying  create_refused    -
destroying  create_ambiguous  -
destroying  create_abandoned  -
destroying  create_unanswered -
destroying  confirmed         destroying
destroying  acquired          -
destroying  marked            destroying
destroying  unmarked          destroying
destroying  unconfirmed       destroying
destroying  overtaken         destroying
destroying  disowned          destroying
destroying  released          -
destroying  used_up           -
destroying  unproven          -
destroying  ambiguous_start   -
destroying  owner_gone        -
destroying  reset             destroying
destroying  reset_failed      destroying
destroying  lost              destroying
destroying  retired           -
destroying  destroyed         gone give_back close
destroying  destroy_unproven  poisoned quarantine
destroying  acknowledged      -
destroying  reaped            destroying

poisoned    created           poisoned destroy
poisoned    create_refused    poisoned
poisoned    create_ambiguous  poisoned destroy
poisoned    create_abandoned  -
poisoned    create_unanswered -
poisoned    confirmed         poisoned
poisoned    acquired          -
poisoned    marked            poisoned
poisoned    unmarked          poisoned
poisoned    unconfirmed       poisoned
poisoned    overtaken         poisoned
poisoned    disowned          poisoned
poisoned    released          poisoned
poisoned    used_up           poisoned
poisoned    unproven          poisoned
poisoned    ambiguous_start   poisoned
poisoned    owner_gone        -
poisoned    reset             poisoned
poisoned    reset_failed      poisoned
poisoned    lost              poisoned
poisoned    retired           -
poisoned    destroyed         gone settle give_back close
poisoned    destroy_unproven  poisoned
poisoned    acknowledged      quarantined settle
poisoned    reaped            gone settle give_back

quarantined created           destroying destroy
quarantined create_refused    quarantined
quarantined create_ambiguous  destroying destroy
quarantined create_abandoned  -
quarantined create_unanswered -
quarantined confirmed         quarantined
quarantined acquired          -
quarantined marked            quarantined
quarantined unmarked          quarantined
quarantined unconfirmed       quarantined
quarantined overtaken         quarantined
quarantined disowned          quarantined
quarantined released          quarantined
quarantined used_up           quarantined
quarantined unproven          quarantined
quarantined ambiguous_start   quarantined
quarantined owner_gone        -
quarantined reset             quarantined
quarantined reset_failed      quarantined
quarantined lost              quarantined
quarantined retired           -
quarantined destroyed         gone give_back
quarantined destroy_unproven  quarantined
quarantined acknowledged      -
quarantined reaped            gone give_back

gone        created           destroying take_back destroy
gone        create_refused    gone
gone        create_ambiguous  destroying take_back destroy
gone        create_abandoned  -
gone        create_unanswered -
gone        confirmed         gone
gone        acquired          -
gone        marked            gone
gone        unmarked          gone
gone        unconfirmed       gone
gone        overtaken         gone
gone        disowned          gone
gone        released          gone
gone        used_up           gone
gone        unproven          gone
gone        ambiguous_start   gone
gone        owner_gone        -
gone        reset             gone
gone        reset_failed      gone
gone        lost              gone
gone        retired           -
gone        destroyed         gone
gone        destroy_unproven  gone
gone        acknowledged      gone
gone        reaped            gone
`

func TestNextDecidesEveryEventInEveryState(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	for line := range strings.Lines(lifeOfALease) {
		if fields := strings.Fields(line); len(fields) > 0 {
			pair := fields[0] + " " + fields[1]
			require.NotContains(t, want, pair)
			want[pair] = strings.Join(fields[2:], " ")
		}
	}
	require.Len(t, want, len(sandbox.LeaseStates())*len(sandbox.LeaseEvents()))
	for _, state := range sandbox.LeaseStates() {
		for _, event := range sandbox.LeaseEvents() {
			pair := fmt.Sprintf("%s %s", state, event)
			require.Equal(t, want[pair], outcome(sandbox.Next(state, event)), pair)
		}
	}
}

func outcome(transition sandbox.Transition, err error) string {
	if err != nil {
		return "-"
	}
	words := []string{transition.To.String()}
	for _, action := range transition.Actions {
		words = append(words, action.String())
	}
	return strings.Join(words, " ")
}

func TestNextRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	_, err := sandbox.Next(0, sandbox.EventCreated)
	require.EqualError(t, err, "a lease that is LeaseState(0) cannot have the event created")
	_, err = sandbox.Next(sandbox.LeaseIdle, 0)
	require.EqualError(t, err, "a lease that is idle cannot have the event LeaseEvent(0)")
	_, err = sandbox.Next(sandbox.LeaseGone+1, sandbox.EventReaped+1)
	require.Error(t, err)
	require.Equal(t, "LeaseAction(0)", sandbox.LeaseAction(0).String())
}

func TestNoWayLeadsFromDoubtToUse(t *testing.T) {
	t.Parallel()
	reached := map[sandbox.LeaseState]bool{sandbox.LeasePoisoned: true, sandbox.LeaseQuarantined: true}
	for range sandbox.LeaseStates() {
		for _, transition := range sandbox.Transitions() {
			if reached[transition.From] {
				reached[transition.To] = true
			}
		}
	}
	for _, usable := range []sandbox.LeaseState{
		sandbox.LeaseConfirming, sandbox.LeaseIdle, sandbox.LeaseReserved, sandbox.LeaseInUse, sandbox.LeaseResetting,
	} {
		require.False(t, reached[usable], usable)
	}
}

func TestOnlyProofGivesCapacityBack(t *testing.T) {
	t.Parallel()
	proof := []sandbox.LeaseEvent{sandbox.EventCreateRefused, sandbox.EventDestroyed, sandbox.EventReaped}
	for _, transition := range sandbox.Transitions() {
		left := transition.From != sandbox.LeaseGone && transition.To == sandbox.LeaseGone
		back := transition.From == sandbox.LeaseGone && transition.To != sandbox.LeaseGone
		settled := transition.From == sandbox.LeasePoisoned && transition.To != sandbox.LeasePoisoned
		doubted := transition.From != sandbox.LeasePoisoned && transition.To == sandbox.LeasePoisoned
		require.Equal(t, left, has(transition, sandbox.ActionGiveBack), transition)
		require.Equal(t, back, has(transition, sandbox.ActionTakeBack), transition)
		require.Equal(t, settled, has(transition, sandbox.ActionSettle), transition)
		require.Equal(t, doubted, has(transition, sandbox.ActionQuarantine), transition)
		if left {
			require.Contains(t, proof, transition.Event)
		}
	}
}

func has(transition sandbox.Transition, action sandbox.LeaseAction) bool {
	return slices.Contains(transition.Actions, action)
}

func TestEveryNameIsThereOnce(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, state := range sandbox.LeaseStates() {
		require.NotContains(t, state.String(), "(")
		names["state "+state.String()] = true
	}
	for _, event := range sandbox.LeaseEvents() {
		require.NotContains(t, event.String(), "(")
		names["event "+event.String()] = true
	}
	for _, action := range sandbox.LeaseActions() {
		require.NotContains(t, action.String(), "(")
		names["action "+action.String()] = true
	}
	require.Len(t, names, 11+25+8)
}

func TestDiagram(t *testing.T) {
	t.Parallel()
	require.Equal(t, `stateDiagram-v2
    [*] --> creating
    creating --> confirming: created
    creating --> gone: create_refused
    creating --> destroying: create_ambiguous
    creating --> abandoned: create_abandoned, disowned
    abandoned --> destroying: created, create_ambiguous
    abandoned --> gone: create_refused
    abandoned --> poisoned: create_unanswered
    confirming --> idle: confirmed
    confirming --> destroying: unconfirmed, overtaken, disowned
    idle --> reserved: acquired
    idle --> destroying: disowned, lost, retired
    reserved --> in_use: marked
    reserved --> idle: unmarked
    reserved --> destroying: unconfirmed, overtaken, disowned
    in_use --> resetting: released
    in_use --> destroying: used_up
    in_use --> poisoned: unproven, ambiguous_start, owner_gone
    resetting --> destroying: disowned, lost
    resetting --> idle: reset
    resetting --> poisoned: reset_failed
    destroying --> gone: destroyed
    destroying --> poisoned: destroy_unproven
    poisoned --> gone: destroyed, reaped
    poisoned --> quarantined: acknowledged
    quarantined --> destroying: created, create_ambiguous
    quarantined --> gone: destroyed, reaped
    gone --> destroying: created, create_ambiguous
    gone --> [*]
`, sandbox.Diagram())
}
