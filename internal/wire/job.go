package wire

// Job is the identity of a request: who sent it, through which queue, under
// which id. Tenant and ID together are unique; the queue is part of the digest.
type Job struct {
	Tenant string
	Queue  string
	ID     string
}

// Key is "<tenant>.<id>", the value of the Exec-Job header.
func (j Job) Key() string { return j.Tenant + "." + j.ID }
