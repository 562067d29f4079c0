package config

import (
	"fmt"
	"os"
)

// Readable is nil when every file that the settings name can be read, else a
// MistakesError that names all that cannot. It is asked before the first
// connection: a client would only say that it could not connect.
func (n NATS) Readable() error {
	var bad MistakesError
	for _, f := range []struct{ key, path string }{
		{"creds", n.Creds}, {"nkey", n.NKey}, {"tlscert", n.TLSCert}, {"tlskey", n.TLSKey}, {"tlsca", n.TLSCA},
	} {
		if f.path == "" {
			continue
		}
		file, err := os.Open(f.path)
		if err == nil {
			err = file.Close()
		}
		if err != nil {
			bad = append(bad, Mistake{Key: f.key, Message: fmt.Sprintf("cannot be read: %v", err)})
		}
	}
	if bad != nil {
		return bad
	}
	return nil
}
