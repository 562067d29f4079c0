package main

// The flags that are settings. Their values are read by name (session.config),
// so that the configuration's own words say what is wrong with them.

// natsFlags are on every command that connects.
type natsFlags struct {
	ConfigFile string `name:"config" help:"Configuration file (YAML)." placeholder:"FILE"`

	Server        string `short:"s" group:"nats" help:"Server URLs, separated by commas." placeholder:"URL"`
	Context       string `group:"nats" help:"Settings from this context of the nats tool." placeholder:"NAME"`
	User          string `group:"nats" help:"User name." placeholder:"USER"`
	Password      string `group:"nats" help:"Password." placeholder:"PASSWORD"`
	Token         string `group:"nats" help:"Authentication token." placeholder:"TOKEN"`
	Creds         string `group:"nats" help:"Credentials file." placeholder:"FILE"`
	Nkey          string `group:"nats" help:"NKey seed file." placeholder:"FILE"`
	Tlscert       string `group:"nats" help:"TLS client certificate." placeholder:"FILE"`
	Tlskey        string `group:"nats" help:"TLS client key." placeholder:"FILE"`
	Tlsca         string `group:"nats" help:"TLS certificate authority." placeholder:"FILE"`
	Tlsfirst      bool   `group:"nats" help:"Begin with the TLS handshake."`
	InboxPrefix   string `group:"nats" help:"Prefix of reply inboxes instead of _INBOX." placeholder:"PREFIX"`
	Timeout       string `group:"nats" help:"Longest wait for the connection and for each answer (5s)." placeholder:"DURATION"`
	SubjectPrefix string `group:"nats" help:"Prefix of all subjects (exec)." placeholder:"TOKEN"`
	StreamPrefix  string `group:"nats" help:"Prefix of all stream names (EXEC)." placeholder:"TOKEN"`
}

// fleetFlags say how the streams are planned; all services share them.
type fleetFlags struct {
	Queues          string `group:"settings" help:"Queues: name[:weight[:concurrency]],…" placeholder:"LIST"`
	FleetSlots      string `group:"settings" help:"Jobs that all workers together may run (256)." placeholder:"N"`
	FleetWorkers    string `group:"settings" help:"Workers that may wait for jobs at once (64)." placeholder:"N"`
	Replicas        string `group:"settings" help:"Replicas of each stream: 1, 3 or 5." placeholder:"N"`
	AckWait         string `group:"settings" help:"Wait for a sign of life of a running job before it is delivered again (60s)." placeholder:"DURATION"`
	ResultRetention string `group:"settings" help:"How long results are kept (3d)." placeholder:"DURATION"`
	OutputRetention string `group:"settings" help:"How long stored output is kept (1d)." placeholder:"DURATION"`
	ReplyAllow      string `group:"settings" help:"Reply subjects that jobs may name (_INBOX.>,reply.{tenant}.>)." placeholder:"LIST"`
}

// serviceFlags are on every service.
type serviceFlags struct {
	LogLevel string `group:"settings" help:"debug, info, warn or error (info)." placeholder:"LEVEL"`
	HTTP     string `name:"http" group:"settings" help:"Address of /healthz, /readyz and /metrics; none by default." placeholder:"HOST:PORT"`
	StateDir string `group:"settings" help:"Directory for what must survive this process." placeholder:"DIR"`
}

// workerFlags are on services that run jobs.
type workerFlags struct {
	Slots   string `group:"settings" help:"Jobs to run at once (the number of CPUs)." placeholder:"N"`
	Drain   string `group:"settings" help:"How long a stopping worker lets its jobs run on (30s)." placeholder:"DURATION"`
	Require string `group:"settings" help:"What this host must be able to isolate and limit (namespaces,memory,cpu,pids)." placeholder:"LIST"`
}

// jsonFlag is on everything that prints data.
type jsonFlag struct {
	JSON bool `name:"json" help:"Print JSON."`
}
