package wire

import (
	"fmt"
	"strings"
)

// maxPrefixTokens bounds a subject prefix: room for an organisation, a site and
// an environment in front, and every subject still far below the 256 bytes up
// to which NATS servers are efficient.
const maxPrefixTokens = 4

// The second part of every subject, after the prefix.
const (
	kindJob        = "job"
	kindSubmit     = "submit"
	kindOut        = "out"
	kindLive       = "live"
	kindRead       = "read"
	kindCtl        = "ctl"
	kindCancel     = "cancel"
	kindStatus     = "status"
	kindRun        = "run"
	kindLease      = "lease"
	kindQuarantine = "quarantine"
	kindDead       = "dead"
)

// epochToken stands where a ledger entry has its provider, in the subjects of the
// workers' epochs.
const epochToken = "_worker"

// Subjects makes and reads the subjects below one prefix. A maker that is given
// a word that is not a ValidToken returns the empty subject, which NATS refuses:
// a bad word can never turn into a wildcard or into another tenant's subject.
// The zero value is not usable.
type Subjects struct {
	prefix string
}

// NewSubjects returns the subjects below prefix: one to four tokens with dots
// between, each a ValidToken that does not begin with '_' (those are NATS's own,
// as _INBOX is).
func NewSubjects(prefix string) (Subjects, error) {
	tokens := strings.Split(prefix, ".")
	if len(tokens) > maxPrefixTokens {
		return Subjects{}, fmt.Errorf("subject prefix %s: has %d tokens, at most %d are allowed", quoted(prefix), len(tokens), maxPrefixTokens)
	}
	for _, token := range tokens {
		if !ValidToken(token) || token[0] == '_' {
			return Subjects{}, fmt.Errorf("subject prefix %s: each part must be 1 to %d of A-Z, a-z, 0-9, '_' and '-', and not begin with '_'", quoted(prefix), MaxTokenBytes)
		}
	}
	return Subjects{prefix: prefix}, nil
}

// Prefix is the prefix without a dot at its end.
func (s Subjects) Prefix() string { return s.prefix }

// Job is where a request is queued: <prefix>.job.<tenant>.<queue>.<id>.
func (s Subjects) Job(j Job) string { return s.subject(kindJob, j.Tenant, j.Queue, j.ID) }

// Submit is the gateway's way in: <prefix>.submit.<tenant>.<queue>.
func (s Subjects) Submit(tenant, queue string) string { return s.subject(kindSubmit, tenant, queue) }

// Out is a job's stored output: <prefix>.out.<tenant>.<id>.
func (s Subjects) Out(tenant, id string) string { return s.subject(kindOut, tenant, id) }

// Live is where the server repeats stored output as it comes.
func (s Subjects) Live(tenant, id string) string { return s.subject(kindLive, tenant, id) }

// Read is the gateway's endpoint for stored output.
func (s Subjects) Read(tenant, id string) string { return s.subject(kindRead, tenant, id) }

// Ctl reaches the worker that runs the job.
func (s Subjects) Ctl(tenant, id string) string { return s.subject(kindCtl, tenant, id) }

// Cancel is the gateway's endpoint that cancels a job in any state.
func (s Subjects) Cancel(tenant, id string) string { return s.subject(kindCancel, tenant, id) }

// Status is the gateway's endpoint that tells a job's state.
func (s Subjects) Status(tenant, id string) string { return s.subject(kindStatus, tenant, id) }

// Run is where the run record stands.
func (s Subjects) Run(tenant, id string) string { return s.subject(kindRun, tenant, id) }

// Lease is where a lease's ledger entry stands. No provider has the name _worker.
func (s Subjects) Lease(provider, lease string) string {
	if provider == epochToken {
		return ""
	}
	return s.subject(kindLease, provider, lease)
}

// Epoch is where a worker's epoch stands: <prefix>.lease._worker.<worker>.
func (s Subjects) Epoch(worker string) string { return s.subject(kindLease, epochToken, worker) }

// Quarantine is where a lease's quarantine record stands.
func (s Subjects) Quarantine(provider, host, lease string) string {
	return s.subject(kindQuarantine, provider, host, lease)
}

// Dead is where a message that could not be run stands.
func (s Subjects) Dead(j Job) string { return s.subject(kindDead, j.Tenant, j.Queue, j.ID) }

// AllJobs matches every job subject. Like all the All forms it has the exact
// number of tokens, so that a stream never stores what no parser accepts.
func (s Subjects) AllJobs() string { return s.all(kindJob, 3) }

// QueueJobs matches every job of a queue: <prefix>.job.*.<queue>.*.
func (s Subjects) QueueJobs(queue string) string { return s.filter(kindJob, "*", queue, "*") }

// QueuedJob matches the queued message of a job whose queue is not known.
func (s Subjects) QueuedJob(tenant, id string) string { return s.filter(kindJob, tenant, "*", id) }

// AllSubmit matches every submit subject.
func (s Subjects) AllSubmit() string { return s.all(kindSubmit, 2) }

// AllOut matches all stored output.
func (s Subjects) AllOut() string { return s.all(kindOut, 2) }

// AllLive matches all live output.
func (s Subjects) AllLive() string { return s.all(kindLive, 2) }

// AllRead matches every read endpoint.
func (s Subjects) AllRead() string { return s.all(kindRead, 2) }

// AllCtl matches every control subject.
func (s Subjects) AllCtl() string { return s.all(kindCtl, 2) }

// AllCancel matches every cancel endpoint.
func (s Subjects) AllCancel() string { return s.all(kindCancel, 2) }

// AllStatus matches every status endpoint.
func (s Subjects) AllStatus() string { return s.all(kindStatus, 2) }

// AllRuns matches every run record.
func (s Subjects) AllRuns() string { return s.all(kindRun, 2) }

// AllLeases matches every ledger entry and every epoch.
func (s Subjects) AllLeases() string { return s.all(kindLease, 2) }

// ProviderLeases matches the ledger entries of one provider.
func (s Subjects) ProviderLeases(provider string) string {
	if !ValidToken(provider) || provider == epochToken {
		return ""
	}
	return s.filter(kindLease, provider, "*")
}

// AllEpochs matches every worker's epoch.
func (s Subjects) AllEpochs() string { return s.filter(kindLease, epochToken, "*") }

// AllQuarantine matches every quarantine record.
func (s Subjects) AllQuarantine() string { return s.all(kindQuarantine, 3) }

// HostQuarantine matches the quarantine records of one provider and host.
func (s Subjects) HostQuarantine(provider, host string) string {
	return s.filter(kindQuarantine, provider, host, "*")
}

// ProviderQuarantine matches the quarantine records of one provider.
func (s Subjects) ProviderQuarantine(provider string) string {
	return s.filter(kindQuarantine, provider, "*", "*")
}

// AllDead matches every dead letter.
func (s Subjects) AllDead() string { return s.all(kindDead, 3) }

// ParseJob reads a job subject.
func (s Subjects) ParseJob(subject string) (Job, error) {
	words, err := s.parse(subject, kindJob, 3)
	if err != nil {
		return Job{}, err
	}
	return Job{Tenant: words[0], Queue: words[1], ID: words[2]}, nil
}

// ParseDead reads the subject of a dead letter.
func (s Subjects) ParseDead(subject string) (Job, error) {
	words, err := s.parse(subject, kindDead, 3)
	if err != nil {
		return Job{}, err
	}
	return Job{Tenant: words[0], Queue: words[1], ID: words[2]}, nil
}

// ParseSubmit reads a submit subject.
func (s Subjects) ParseSubmit(subject string) (tenant, queue string, err error) {
	words, err := s.parse(subject, kindSubmit, 2)
	if err != nil {
		return "", "", err
	}
	return words[0], words[1], nil
}

// ParsePair reads a subject that ends in a tenant and an id: out, live, read,
// ctl, cancel, status or run.
func (s Subjects) ParsePair(subject string) (tenant, id string, err error) {
	for _, kind := range []string{kindOut, kindLive, kindRead, kindCtl, kindCancel, kindStatus, kindRun} {
		if words, err := s.parse(subject, kind, 2); err == nil {
			return words[0], words[1], nil
		}
	}
	return "", "", fmt.Errorf("subject %s: is no subject of one job below %s", quoted(subject), s.prefix)
}

// ParseLease reads the subject of a ledger entry.
func (s Subjects) ParseLease(subject string) (provider, lease string, err error) {
	words, err := s.parse(subject, kindLease, 2)
	if err != nil {
		return "", "", err
	}
	if words[0] == epochToken {
		return "", "", fmt.Errorf("subject %s: is a worker's epoch, no ledger entry", quoted(subject))
	}
	return words[0], words[1], nil
}

// ParseEpoch reads the subject of a worker's epoch.
func (s Subjects) ParseEpoch(subject string) (worker string, err error) {
	words, err := s.parse(subject, kindLease, 2)
	if err != nil {
		return "", err
	}
	if words[0] != epochToken {
		return "", fmt.Errorf("subject %s: is a ledger entry, no worker's epoch", quoted(subject))
	}
	return words[1], nil
}

// ParseQuarantine reads the subject of a quarantine record.
func (s Subjects) ParseQuarantine(subject string) (provider, host, lease string, err error) {
	words, err := s.parse(subject, kindQuarantine, 3)
	if err != nil {
		return "", "", "", err
	}
	return words[0], words[1], words[2], nil
}

// owns says whether subject is the prefix itself or below it.
func (s Subjects) owns(subject string) bool {
	return subject == s.prefix || strings.HasPrefix(subject, s.prefix+".")
}

func (s Subjects) subject(kind string, words ...string) string {
	for _, word := range words {
		if !ValidToken(word) {
			return ""
		}
	}
	return s.join(kind, words...)
}

func (s Subjects) filter(kind string, words ...string) string {
	for _, word := range words {
		if word != "*" && !ValidToken(word) {
			return ""
		}
	}
	return s.join(kind, words...)
}

func (s Subjects) all(kind string, words int) string {
	return s.prefix + "." + kind + strings.Repeat(".*", words)
}

func (s Subjects) join(kind string, words ...string) string {
	if s.prefix == "" {
		return ""
	}
	return s.prefix + "." + kind + "." + strings.Join(words, ".")
}

// parse returns the n words behind the kind, each of them a ValidToken.
func (s Subjects) parse(subject, kind string, n int) ([]string, error) {
	rest, found := strings.CutPrefix(subject, s.prefix+"."+kind+".")
	if s.prefix == "" || !found {
		return nil, fmt.Errorf("subject %s: does not begin with %s.%s", quoted(subject), s.prefix, kind)
	}
	// One part more than wanted is enough to know that there are too many.
	words := strings.SplitN(rest, ".", n+1)
	if len(words) != n {
		return nil, fmt.Errorf("subject %s: must have %d tokens after %s.%s", quoted(subject), n, s.prefix, kind)
	}
	for _, word := range words {
		if !ValidToken(word) {
			return nil, fmt.Errorf("subject %s: token %s must be 1 to %d of A-Z, a-z, 0-9, '_' and '-'", quoted(subject), quoted(word), MaxTokenBytes)
		}
	}
	return words, nil
}
