package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The bounds of a reply subject: far above what any client's inbox needs
// (nats.go's has 40 bytes and 3 tokens), far below what hurts a server.
const (
	MaxReplyBytes  = 256
	MaxReplyTokens = 16
)

// tenantMark stands in an allow-list entry for the tenant of the job.
const tenantMark = "{tenant}"

// ReplyRule decides on which reply subjects a worker may publish for a tenant.
// A request cannot borrow the worker's rights: what the operator did not list is
// refused, and some subjects are refused whatever the list says.
type ReplyRule struct {
	subjects Subjects
	entries  []string
}

// NewReplyRule makes a rule from the operator's allow-list. An entry is a
// subject, or with ".>" at its end everything of at least one more token below
// it; "{tenant}" stands for the tenant of the job. Examples: _INBOX.>,
// _INBOX.{tenant}.>, reply.{tenant}.results. An empty list allows no reply. An
// entry that allows everything, begins with '$' or lies below our own prefix is
// refused.
func NewReplyRule(subjects Subjects, allow []string) (ReplyRule, error) {
	if subjects.prefix == "" {
		return ReplyRule{}, errors.New("reply rule: needs the subjects of a prefix")
	}
	rule := ReplyRule{subjects: subjects}
	for _, entry := range allow {
		if err := rule.checkEntry(entry); err != nil {
			return ReplyRule{}, fmt.Errorf("reply allow-list entry %s: %w", quoted(entry), err)
		}
		rule.entries = append(rule.entries, entry)
	}
	return rule, nil
}

func (r ReplyRule) checkEntry(entry string) error {
	subject := strings.TrimSuffix(entry, ".>")
	// Any tenant will do to see what the entry looks like.
	sample := strings.ReplaceAll(subject, tenantMark, "t")
	if bad := checkReplyShape(sample); bad != nil {
		return errors.New(bad.Message)
	}
	if strings.ContainsAny(sample, "{}") {
		return fmt.Errorf("holds a brace that is not part of %s", tenantMark)
	}
	if strings.HasPrefix(entry, "_"+tenantMark) {
		return errors.New("lets a tenant's name choose the inbox prefix (a tenant named INBOX would own _INBOX)")
	}
	return r.checkOwner(sample)
}

// Check returns nil when the worker may publish on reply for the tenant, and
// otherwise an Invalid with ReasonReply that names the header.
func (r ReplyRule) Check(tenant, reply string) *Invalid {
	if !ValidToken(tenant) {
		return invalid(ReasonReply, HeaderReplyTo, "no reply is allowed for the tenant %s, which is not a valid name", quoted(tenant))
	}
	if bad := checkReplyShape(reply); bad != nil {
		return bad
	}
	if err := r.checkOwner(reply); err != nil {
		return invalid(ReasonReply, HeaderReplyTo, "%v", err)
	}
	for _, entry := range r.entries {
		// A leading '_' must be the operator's word, never a tenant's name.
		if reply[0] == '_' && entry[0] != '_' {
			continue
		}
		if entryMatches(strings.ReplaceAll(entry, tenantMark, tenant), reply) {
			return nil
		}
	}
	return invalid(ReasonReply, HeaderReplyTo, "%s is not on the operator's list of reply subjects for this tenant", quoted(reply))
}

// CheckShared is Check for an answer that belongs to no tenant, as to a question
// about a service itself. What the operator lists without a tenant is allowed, and
// NATS's usual inboxes are.
func (r ReplyRule) CheckShared(reply string) *Invalid {
	if bad := checkReplyShape(reply); bad != nil {
		return bad
	}
	if err := r.checkOwner(reply); err != nil {
		return invalid(ReasonReply, HeaderReplyTo, "%v", err)
	}
	for _, entry := range append([]string{"_INBOX.>"}, r.entries...) {
		if !strings.Contains(entry, tenantMark) && entryMatches(entry, reply) {
			return nil
		}
	}
	return invalid(ReasonReply, HeaderReplyTo, "%s is not on the operator's list of reply subjects without a tenant", quoted(reply))
}

// checkOwner refuses the subjects that no list can allow. _R_ and _GR_ carry the
// server's own routed replies.
func (r ReplyRule) checkOwner(subject string) error {
	first, _, _ := strings.Cut(subject, ".")
	if first[0] == '$' || first == "_R_" || first == "_GR_" {
		return fmt.Errorf("must not begin with %s: those subjects are the server's own", quoted(first))
	}
	if r.subjects.prefix == "" || r.subjects.owns(subject) {
		return fmt.Errorf("must not lie below %s: those subjects are Sallyport's own", quoted(r.subjects.prefix))
	}
	return nil
}

func entryMatches(entry, reply string) bool {
	base, below := strings.CutSuffix(entry, ".>")
	if !below {
		return reply == entry
	}
	rest, found := strings.CutPrefix(reply, base+".")
	return found && rest != ""
}

// checkReplyShape checks what does not depend on the operator's list.
func checkReplyShape(reply string) *Invalid {
	if reply == "" {
		return invalid(ReasonReply, HeaderReplyTo, "must not be empty; leave the header out when no reply is wanted")
	}
	if len(reply) > MaxReplyBytes {
		return invalid(ReasonReply, HeaderReplyTo, "must have at most %d bytes, not %d", MaxReplyBytes, len(reply))
	}
	for i := range len(reply) {
		switch c := reply[i]; {
		case c == '*' || c == '>':
			return invalid(ReasonReply, HeaderReplyTo, "must not hold a wildcard ('*' or '>')")
		case c <= ' ' || c >= 0x7f:
			return invalid(ReasonReply, HeaderReplyTo, "must hold printable ASCII characters only, without spaces")
		}
	}
	tokens := strings.Split(reply, ".")
	if len(tokens) > MaxReplyTokens {
		return invalid(ReasonReply, HeaderReplyTo, "must have at most %d tokens, not %d", MaxReplyTokens, len(tokens))
	}
	if slices.Contains(tokens, "") {
		return invalid(ReasonReply, HeaderReplyTo, "must not hold an empty token (two dots in a row, or one at an end)")
	}
	return nil
}

// ReplyHeader takes the reply subject out of a message's headers: "" when there
// is none. The name is compared without regard to case, so that a header in
// another case is neither ignored nor able to hide a second one. More than one
// value, or an empty one, is invalid. The subject is not checked: that is what
// ReplyRule is for.
func ReplyHeader(headers map[string][]string) (string, *Invalid) {
	reply, found := "", false
	for name, values := range headers {
		if !strings.EqualFold(name, HeaderReplyTo) {
			continue
		}
		for _, value := range values {
			if found {
				return "", invalid(ReasonReply, HeaderReplyTo, "must stand once only")
			}
			reply, found = value, true
		}
	}
	if found && reply == "" {
		return "", invalid(ReasonReply, HeaderReplyTo, "must not be empty; leave the header out when no reply is wanted")
	}
	return reply, nil
}

// ReservedHeader says whether a header is one that a server or a client library
// acts upon, so that a gateway must not pass it on: Nats-*, Status, Description
// and KV-Operation, in any case.
func ReservedHeader(name string) bool {
	name = strings.ToLower(strings.TrimSpace(name))
	return strings.HasPrefix(name, "nats-") || name == "status" || name == "description" || name == "kv-operation"
}
