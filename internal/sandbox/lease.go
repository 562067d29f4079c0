package sandbox

import (
	"fmt"
	"slices"
	"strings"
)

// LeaseState is where the sandbox of one lease stands in the books of its owner.
type LeaseState int

// The lease states, a closed set. The zero value is invalid.
const (
	// LeaseCreating: the provider was asked for it and has not answered yet.
	LeaseCreating LeaseState = iota + 1
	// LeaseAbandoned: nobody waits for the answer to the create call any more,
	// but it may still come and bring a sandbox.
	LeaseAbandoned
	// LeaseConfirming: it was made, and the ledger does not know its handle yet.
	LeaseConfirming
	// LeaseIdle: empty, proven so, and ready.
	LeaseIdle
	// LeaseReserved: a holder was chosen, and the ledger does not know of it yet.
	LeaseReserved
	// LeaseInUse: one holder has it.
	LeaseInUse
	// LeaseResetting: its job is proven gone, its state is not yet the first one.
	LeaseResetting
	// LeaseDestroying: it is being destroyed and may still be there.
	LeaseDestroying
	// LeasePoisoned: in doubt, and the quarantine record is not durable yet.
	LeasePoisoned
	// LeaseQuarantined: in doubt, with a durable record: the reaper's.
	LeaseQuarantined
	// LeaseGone: proven gone, or never made.
	LeaseGone
)

// LeaseEvent is something that happened to a lease.
type LeaseEvent int

// The lease events, a closed set. The zero value is invalid.
const (
	// EventCreated: the create call brought a sandbox, in time or late.
	EventCreated LeaseEvent = iota + 1
	// EventCreateRefused: surely no sandbox was made.
	EventCreateRefused
	// EventCreateAmbiguous: a sandbox may have been made.
	EventCreateAmbiguous
	// EventCreateAbandoned: the answer is overdue, nobody waits for it any more.
	EventCreateAbandoned
	// EventCreateUnanswered: the answer to an abandoned call did not come either.
	EventCreateUnanswered
	// EventConfirmed: the ledger knows its handle, or it stands in none.
	EventConfirmed
	// EventAcquired: a holder is chosen for it.
	EventAcquired
	// EventMarked: the ledger knows of its use, or it stands in none: the holder has
	// it.
	EventMarked
	// EventUnmarked: the ledger did not take the mark; nobody had it.
	EventUnmarked
	// EventUnconfirmed: the ledger did not answer in time whether it may be used.
	EventUnconfirmed
	// EventOvertaken: the ledger says that somebody else decided about it.
	EventOvertaken
	// EventDisowned: it stands in the ledger, and its owner may not call it its own
	// any more.
	EventDisowned
	// EventReleased: given back, the end of its job proven, to be used again.
	EventReleased
	// EventUsedUp: given back, the end of its job proven, not to be used again.
	EventUsedUp
	// EventUnproven: given back without proof that its job is gone.
	EventUnproven
	// EventAmbiguousStart: given back, and nobody knows whether its job started.
	EventAmbiguousStart
	// EventOwnerGone: its holder did not give it back in time and never may.
	EventOwnerGone
	// EventReset: its first state is restored.
	EventReset
	// EventResetFailed: its first state is not restored, or not known to be.
	EventResetFailed
	// EventLost: the sandbox ended or broke although nobody destroyed it.
	EventLost
	// EventRetired: too old, idle for too long, evicted, or its owner closes.
	EventRetired
	// EventDestroyed: a destroy call returned proof.
	EventDestroyed
	// EventDestroyUnproven: all tries to destroy it ended without proof.
	EventDestroyUnproven
	// EventAcknowledged: the quarantine record is durable.
	EventAcknowledged
	// EventReaped: the reaper has proof that it is gone.
	EventReaped
)

// LeaseAction is what the owner has to do because of a transition.
type LeaseAction int

// The lease actions, a closed set. The zero value is invalid.
const (
	// ActionConfirm: note its handle in the ledger.
	ActionConfirm LeaseAction = iota + 1
	// ActionReset: return the sandbox to its first state.
	ActionReset
	// ActionDestroy: destroy it, in the background, with bounded tries.
	ActionDestroy
	// ActionQuarantine: publish the quarantine record until it is acknowledged.
	ActionQuarantine
	// ActionSettle: tell who waits for it that nothing needs to become durable
	// any more.
	ActionSettle
	// ActionGiveBack: its capacity is free again.
	ActionGiveBack
	// ActionTakeBack: it holds capacity after all.
	ActionTakeBack
	// ActionClose: end its entry in the ledger with the proof.
	ActionClose
)

// Transition is one arrow of the lease's life.
type Transition struct {
	From    LeaseState
	Event   LeaseEvent
	To      LeaseState
	Actions []LeaseAction
}

// Next is the life of a lease as a pure function: where event leads from state,
// and what is to be done. An error means that the event cannot happen in that
// state: the caller's books are wrong. A transition that stays where it is and
// asks for nothing is an event that is expected there and changes nothing, such
// as an answer that comes late or twice.
//
// Two rules hold over all of it: no arrow leads from doubt (poisoned,
// quarantined) back to use, and capacity is given back on proof alone.
func Next(state LeaseState, event LeaseEvent) (Transition, error) {
	to, actions := LeaseState(0), []LeaseAction(nil)
	switch state {
	case LeaseCreating:
		to, actions = fromCreating(event)
	case LeaseAbandoned:
		to, actions = fromAbandoned(event)
	case LeaseConfirming:
		to, actions = fromConfirming(event)
	case LeaseIdle:
		to, actions = fromIdle(event)
	case LeaseReserved:
		to, actions = fromReserved(event)
	case LeaseInUse:
		to, actions = fromInUse(event)
	case LeaseResetting:
		to, actions = fromResetting(event)
	case LeaseDestroying:
		to, actions = fromDestroying(event)
	case LeasePoisoned:
		to, actions = fromPoisoned(event)
	case LeaseQuarantined:
		to, actions = fromQuarantined(event)
	case LeaseGone:
		to, actions = fromGone(event)
	}
	if to == 0 {
		return Transition{}, fmt.Errorf("a lease that is %s cannot have the event %s", state, event)
	}
	return Transition{From: state, Event: event, To: to, Actions: actions}, nil
}

func fromCreating(event LeaseEvent) (LeaseState, []LeaseAction) {
	switch event {
	case EventCreated:
		return move(LeaseConfirming, ActionConfirm)
	case EventCreateRefused:
		return move(LeaseGone, ActionGiveBack, ActionClose)
	case EventCreateAmbiguous:
		return move(LeaseDestroying, ActionDestroy)
	case EventCreateAbandoned, EventDisowned:
		return move(LeaseAbandoned)
	case EventCreateUnanswered, EventConfirmed, EventAcquired, EventMarked, EventUnmarked, EventUnconfirmed,
		EventOvertaken, EventReleased, EventUsedUp, EventUnproven, EventAmbiguousStart, EventOwnerGone, EventReset,
		EventResetFailed, EventLost, EventRetired, EventDestroyed, EventDestroyUnproven, EventAcknowledged, EventReaped:
	}
	return impossible()
}

func fromAbandoned(event LeaseEvent) (LeaseState, []LeaseAction) {
	switch event {
	case EventCreated, EventCreateAmbiguous:
		// Destroyed even if it could be used: the provider is in trouble, and the
		// one who asked for it has been told that there is none.
		return move(LeaseDestroying, ActionDestroy)
	case EventCreateRefused:
		return move(LeaseGone, ActionGiveBack, ActionClose)
	case EventCreateUnanswered:
		return move(LeasePoisoned, ActionQuarantine)
	case EventDisowned:
		return move(LeaseAbandoned)
	case EventCreateAbandoned, EventConfirmed, EventAcquired, EventMarked, EventUnmarked, EventUnconfirmed,
		EventOvertaken, EventReleased, EventUsedUp, EventUnproven, EventAmbiguousStart, EventOwnerGone, EventReset,
		EventResetFailed, EventLost, EventRetired, EventDestroyed, EventDestroyUnproven, EventAcknowledged, EventReaped:
	}
	return impossible()
}

func fromConfirming(event LeaseEvent) (LeaseState, []LeaseAction) {
	switch event {
	case EventConfirmed:
		return move(LeaseIdle)
	case EventUnconfirmed, EventOvertaken, EventDisowned:
		return move(LeaseDestroying, ActionDestroy)
	case EventCreated, EventCreateRefused, EventCreateAmbiguous, EventCreateAbandoned, EventCreateUnanswered,
		EventAcquired, EventMarked, EventUnmarked, EventReleased, EventUsedUp, EventUnproven, EventAmbiguousStart,
		EventOwnerGone, EventReset, EventResetFailed, EventLost, EventRetired, EventDestroyed, EventDestroyUnproven,
		EventAcknowledged, EventReaped:
	}
	return impossible()
}

func fromIdle(event LeaseEvent) (LeaseState, []LeaseAction) {
	switch event {
	case EventAcquired:
		return move(LeaseReserved)
	case EventLost, EventRetired, EventDisowned:
		return move(LeaseDestroying, ActionDestroy)
	case EventCreated, EventCreateRefused, EventCreateAmbiguous, EventCreateAbandoned, EventCreateUnanswered,
		EventConfirmed, EventMarked, EventUnmarked, EventUnconfirmed, EventOvertaken, EventReleased, EventUsedUp,
		EventUnproven, EventAmbiguousStart, EventOwnerGone, EventReset, EventResetFailed, EventDestroyed,
		EventDestroyUnproven, EventAcknowledged, EventReaped:
	}
	return impossible()
}

func fromReserved(event LeaseEvent) (LeaseState, []LeaseAction) {
	switch event {
	case EventMarked:
		return move(LeaseInUse)
	case EventUnmarked:
		// Without a reset: nobody had it.
		return move(LeaseIdle)
	case EventUnconfirmed, EventOvertaken, EventDisowned:
		return move(LeaseDestroying, ActionDestroy)
	case EventCreated, EventCreateRefused, EventCreateAmbiguous, EventCreateAbandoned, EventCreateUnanswered,
		EventConfirmed, EventAcquired, EventReleased, EventUsedUp, EventUnproven, EventAmbiguousStart, EventOwnerGone,
		EventReset, EventResetFailed, EventLost, EventRetired, EventDestroyed, EventDestroyUnproven, EventAcknowledged,
		EventReaped:
	}
	return impossible()
}

func fromInUse(event LeaseEvent) (LeaseState, []LeaseAction) {
	switch event {
	case EventReleased:
		return move(LeaseResetting, ActionReset)
	case EventUsedUp:
		return move(LeaseDestroying, ActionDestroy)
	case EventUnproven, EventAmbiguousStart, EventOwnerGone:
		return move(LeasePoisoned, ActionQuarantine)
	case EventLost, EventDisowned:
		// Lost: its holder sees that too, and decides with what it knows of the job.
		// Disowned: its owner sees to it that it is used up after this job.
		return move(LeaseInUse)
	case EventCreated, EventCreateRefused, EventCreateAmbiguous, EventCreateAbandoned, EventCreateUnanswered,
		EventConfirmed, EventAcquired, EventMarked, EventUnmarked, EventUnconfirmed, EventOvertaken, EventReset,
		EventResetFailed, EventRetired, EventDestroyed, EventDestroyUnproven, EventAcknowledged, EventReaped:
	}
	return impossible()
}

func fromResetting(event LeaseEvent) (LeaseState, []LeaseAction) {
	switch event {
	case EventReset:
		return move(LeaseIdle)
	case EventResetFailed:
		return move(LeasePoisoned, ActionQuarantine)
	case EventLost, EventDisowned:
		// Nothing is in doubt: its job was proven gone before.
		return move(LeaseDestroying, ActionDestroy)
	case EventCreated, EventCreateRefused, EventCreateAmbiguous, EventCreateAbandoned, EventCreateUnanswered,
		EventConfirmed, EventAcquired, EventMarked, EventUnmarked, EventUnconfirmed, EventOvertaken, EventReleased,
		EventUsedUp, EventUnproven, EventAmbiguousStart, EventOwnerGone, EventRetired, EventDestroyed,
		EventDestroyUnproven, EventAcknowledged, EventReaped:
	}
	return impossible()
}

func fromDestroying(event LeaseEvent) (LeaseState, []LeaseAction) {
	switch event {
	case EventDestroyed:
		return move(LeaseGone, ActionGiveBack, ActionClose)
	case EventDestroyUnproven:
		return move(LeasePoisoned, ActionQuarantine)
	case EventLost, EventDisowned:
		return move(LeaseDestroying)
	case EventConfirmed, EventMarked, EventUnmarked, EventUnconfirmed, EventOvertaken, EventReset, EventResetFailed:
		// Late answers, after it was disowned or the ledger did not answer in time.
		return move(LeaseDestroying)
	case EventReaped:
		// Only after a late answer to the create call: the reaper's proof is older than
		// what came.
		return move(LeaseDestroying)
	case EventCreated, EventCreateRefused, EventCreateAmbiguous, EventCreateAbandoned, EventCreateUnanswered,
		EventAcquired, EventReleased, EventUsedUp, EventUnproven, EventAmbiguousStart, EventOwnerGone, EventRetired,
		EventAcknowledged:
	}
	return impossible()
}

func fromPoisoned(event LeaseEvent) (LeaseState, []LeaseAction) {
	switch event {
	case EventAcknowledged:
		return move(LeaseQuarantined, ActionSettle)
	case EventDestroyed:
		return move(LeaseGone, ActionSettle, ActionGiveBack, ActionClose)
	case EventReaped:
		// The reaper ends the entry in the ledger together with its own record.
		return move(LeaseGone, ActionSettle, ActionGiveBack)
	case EventCreated, EventCreateAmbiguous:
		// What was in doubt is there, or may be only now; the reaper may not know its
		// handle.
		return move(LeasePoisoned, ActionDestroy)
	case EventCreateRefused, EventConfirmed, EventMarked, EventUnmarked, EventUnconfirmed,
		EventOvertaken, EventDisowned, EventReleased, EventUsedUp, EventUnproven, EventAmbiguousStart, EventReset,
		EventResetFailed, EventLost, EventDestroyUnproven:
		// Late answers: doubt stays doubt until somebody proves that it is gone.
		return move(LeasePoisoned)
	case EventCreateAbandoned, EventCreateUnanswered, EventAcquired, EventOwnerGone, EventRetired:
	}
	return impossible()
}

func fromQuarantined(event LeaseEvent) (LeaseState, []LeaseAction) {
	switch event {
	case EventDestroyed, EventReaped:
		// The entry in the ledger is the reaper's, in both cases.
		return move(LeaseGone, ActionGiveBack)
	case EventCreated, EventCreateAmbiguous:
		// The reaper may have ended the record before, and nobody was told yet: its
		// proof would be older than what came. So this is a doubt of its own.
		return move(LeaseDestroying, ActionDestroy)
	case EventCreateRefused, EventConfirmed, EventMarked, EventUnmarked, EventUnconfirmed,
		EventOvertaken, EventDisowned, EventReleased, EventUsedUp, EventUnproven, EventAmbiguousStart, EventReset,
		EventResetFailed, EventLost, EventDestroyUnproven:
		return move(LeaseQuarantined)
	case EventCreateAbandoned, EventCreateUnanswered, EventAcquired, EventOwnerGone, EventRetired, EventAcknowledged:
	}
	return impossible()
}

func fromGone(event LeaseEvent) (LeaseState, []LeaseAction) {
	switch event {
	case EventCreated, EventCreateAmbiguous:
		// The reaper proved it gone while the create call was still out, and the
		// call made it afterwards.
		return move(LeaseDestroying, ActionTakeBack, ActionDestroy)
	case EventCreateRefused, EventConfirmed, EventMarked, EventUnmarked, EventUnconfirmed, EventOvertaken,
		EventDisowned, EventReleased, EventUsedUp, EventUnproven, EventAmbiguousStart, EventReset, EventResetFailed,
		EventLost, EventDestroyed, EventDestroyUnproven, EventAcknowledged, EventReaped:
		// Late or repeated: proof stands.
		return move(LeaseGone)
	case EventCreateAbandoned, EventCreateUnanswered, EventAcquired, EventOwnerGone, EventRetired:
	}
	return impossible()
}

func move(to LeaseState, actions ...LeaseAction) (LeaseState, []LeaseAction) { return to, actions }

func impossible() (LeaseState, []LeaseAction) { return 0, nil }

// LeaseStates are all states, in the order of a life.
func LeaseStates() []LeaseState { return enum(LeaseCreating, LeaseGone) }

// LeaseEvents are all events.
func LeaseEvents() []LeaseEvent { return enum(EventCreated, EventReaped) }

// LeaseActions are all actions.
func LeaseActions() []LeaseAction { return enum(ActionConfirm, ActionClose) }

func enum[T ~int](first, last T) []T {
	var all []T
	for v := first; v <= last; v++ {
		all = append(all, v)
	}
	return all
}

// Transitions are all transitions that can happen, by state, then by event:
// what documentation is checked against.
func Transitions() []Transition {
	var all []Transition
	for _, state := range LeaseStates() {
		for _, event := range LeaseEvents() {
			if t, err := Next(state, event); err == nil {
				all = append(all, t)
			}
		}
	}
	return all
}

// Diagram is the life of a lease as a Mermaid state diagram: each arrow between
// two different states, with the events that lead along it.
func Diagram() string {
	type arrow struct{ from, to LeaseState }
	var arrows []arrow
	labels := map[arrow][]string{}
	for _, t := range Transitions() {
		a := arrow{t.From, t.To}
		if t.From == t.To {
			continue
		}
		if !slices.Contains(arrows, a) {
			arrows = append(arrows, a)
		}
		labels[a] = append(labels[a], t.Event.String())
	}
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n")
	fmt.Fprintf(&b, "    [*] --> %s\n", LeaseCreating)
	for _, a := range arrows {
		fmt.Fprintf(&b, "    %s --> %s: %s\n", a.from, a.to, strings.Join(labels[a], ", "))
	}
	fmt.Fprintf(&b, "    %s --> [*]\n", LeaseGone)
	return b.String()
}

func (s LeaseState) String() string {
	switch s {
	case LeaseCreating:
		return "creating"
	case LeaseAbandoned:
		return "abandoned"
	case LeaseConfirming:
		return "confirming"
	case LeaseIdle:
		return "idle"
	case LeaseReserved:
		return "reserved"
	case LeaseInUse:
		return "in_use"
	case LeaseResetting:
		return "resetting"
	case LeaseDestroying:
		return "destroying"
	case LeasePoisoned:
		return "poisoned"
	case LeaseQuarantined:
		return "quarantined"
	case LeaseGone:
		return "gone"
	}
	return fmt.Sprintf("LeaseState(%d)", int(s))
}

func (e LeaseEvent) String() string {
	switch e {
	case EventCreated:
		return "created"
	case EventCreateRefused:
		return "create_refused"
	case EventCreateAmbiguous:
		return "create_ambiguous"
	case EventCreateAbandoned:
		return "create_abandoned"
	case EventCreateUnanswered:
		return "create_unanswered"
	case EventConfirmed:
		return "confirmed"
	case EventAcquired:
		return "acquired"
	case EventMarked:
		return "marked"
	case EventUnmarked:
		return "unmarked"
	case EventUnconfirmed:
		return "unconfirmed"
	case EventOvertaken:
		return "overtaken"
	case EventDisowned:
		return "disowned"
	case EventReleased:
		return "released"
	case EventUsedUp:
		return "used_up"
	case EventUnproven:
		return "unproven"
	case EventAmbiguousStart:
		return "ambiguous_start"
	case EventOwnerGone:
		return "owner_gone"
	case EventReset:
		return "reset"
	case EventResetFailed:
		return "reset_failed"
	case EventLost:
		return "lost"
	case EventRetired:
		return "retired"
	case EventDestroyed:
		return "destroyed"
	case EventDestroyUnproven:
		return "destroy_unproven"
	case EventAcknowledged:
		return "acknowledged"
	case EventReaped:
		return "reaped"
	}
	return fmt.Sprintf("LeaseEvent(%d)", int(e))
}

func (a LeaseAction) String() string {
	switch a {
	case ActionConfirm:
		return "confirm"
	case ActionReset:
		return "reset"
	case ActionDestroy:
		return "destroy"
	case ActionQuarantine:
		return "quarantine"
	case ActionSettle:
		return "settle"
	case ActionGiveBack:
		return "give_back"
	case ActionTakeBack:
		return "take_back"
	case ActionClose:
		return "close"
	}
	return fmt.Sprintf("LeaseAction(%d)", int(a))
}
