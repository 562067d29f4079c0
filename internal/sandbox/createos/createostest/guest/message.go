package guest

// Marker is argv[0] of a guest; argv[1] is its role.
const Marker = "sallyport-createos-guest"

// The roles.
const (
	RoleBox  = "box"
	RoleTree = "tree"
)

// Socket is the descriptor on which a guest is told what to do.
const Socket = 3

// MaxMessage bounds a message between server and box, in bytes.
const MaxMessage = 16 << 10

// Setup is the first message to box.
type Setup struct {
	// Name is the source of the root's mount, by which its processes are found.
	Name string
	// Bytes bounds the root, in which all files of the sandbox are: memory.
	Bytes int64
}

// Order is every further message to box.
type Order struct {
	Do string
	// Path is the file to open; Write says that it is to be written from its
	// beginning, Parents that its missing directories are to be made.
	// It is bytes: a name need not be UTF-8.
	Path           []byte `json:",omitempty"`
	Write, Parents bool   `json:",omitempty"`
}

// The orders. OrderStart comes with four descriptors: standard input, output, error
// output, and the tree's socket. OrderOpen is answered with one.
const (
	OrderStart  = "start"
	OrderFreeze = "freeze"
	OrderThaw   = "thaw"
	OrderOpen   = "open"
)

// Answer is box's answer to each message. Fault is empty when it is done.
type Answer struct {
	Fault string `json:",omitempty"`
	// Errno is the system's reason, if it is one.
	Errno int `json:",omitempty"`
}

// Launch is the first message to tree, on a stream of JSON values.
type Launch struct {
	// Argv has at least one element; Argv[0] without a slash is looked up in PATH.
	Argv, Env []string
	Cwd       string
}

// Kick is every further message to tree: send a signal to the leader, or to all of
// the tree. SIGKILL to all is repeated until nothing is left.
type Kick struct {
	Signal int
	All    bool
}

// Report is what tree says.
type Report struct {
	// PID is the leader's: it was started.
	PID int `json:",omitempty"`
	// Fault and Errno: it was not.
	Fault string `json:",omitempty"`
	Errno int    `json:",omitempty"`
	// Ended: the leader ended with Code or by Signal.
	Ended        bool `json:",omitempty"`
	Code, Signal int
	// Gone: no child is left, and none can come.
	Gone bool `json:",omitempty"`
}
