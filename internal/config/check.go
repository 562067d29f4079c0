package config

import (
	"slices"
)

// check finds what only the whole configuration shows.
func (l *loader) check() {
	c := l.cfg
	if len(c.Queues) == 0 {
		l.mistake("", keyQueues, "is empty; at least one queue is needed, like [{name: default}]")
	}
	seen := map[string]bool{}
	for _, q := range c.Queues {
		if seen[q.Name] {
			l.mistake("", keyQueues, quote(q.Name)+" stands there twice")
		}
		seen[q.Name] = true
	}
	if len(c.ReplyAllow) == 0 {
		l.mistake("", "reply_allow", "is empty; without an allowed reply subject no caller can be answered")
	}
	if c.Slots > c.FleetSlots {
		l.mistake("", "slots", "is above fleet_slots, the number of jobs that all workers together may run")
	}
	if !slices.Contains(c.Require, RequireNamespaces) {
		c.Require = append([]string{RequireNamespaces}, c.Require...)
	}
	l.checkNATS()
}

// checkNATS refuses two ways to log in at once: which one wins is a guess.
func (l *loader) checkNATS() {
	n := l.cfg.NATS
	var ways []string
	for _, way := range []struct{ key, value string }{
		{"user", n.User}, {"token", n.Token}, {"creds", n.Creds}, {"nkey", n.NKey},
	} {
		if way.value != "" {
			ways = append(ways, way.key)
		}
	}
	if len(ways) > 1 {
		l.mistake("", ways[1], "is set beside "+ways[0]+"; choose one way to log in")
	}
	if n.Password != "" && n.User == "" {
		l.mistake("", "password", "is set without user")
	}
	if (n.TLSCert == "") != (n.TLSKey == "") {
		l.mistake("", "tlscert", "and tlskey belong together; one of them is missing")
	}
}
