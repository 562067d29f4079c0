package daemon

import (
	"fmt"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"

	"github.com/sallyport/sallyport/internal/config"
)

// Dial says how to connect: the servers and the client's options. What the
// configuration gives stands above what the named context of the nats tool says.
func Dial(cfg config.NATS) (servers string, opts []nats.Option, err error) {
	if err := cfg.Readable(); err != nil {
		return "", nil, err
	}
	over := []natscontext.Option{
		natscontext.WithServerURL(cfg.Server),
		natscontext.WithUser(cfg.User), natscontext.WithPassword(cfg.Password), natscontext.WithToken(cfg.Token),
		natscontext.WithCreds(cfg.Creds), natscontext.WithNKey(cfg.NKey),
		natscontext.WithCertificate(cfg.TLSCert), natscontext.WithKey(cfg.TLSKey), natscontext.WithCA(cfg.TLSCA),
		natscontext.WithInboxPrefix(cfg.InboxPrefix),
	}
	if cfg.TLSFirst {
		over = append(over, natscontext.WithTLSHandshakeFirst())
	}
	settings, err := natscontext.New(cfg.Context, cfg.Context != "", over...)
	if err != nil {
		return "", nil, fmt.Errorf("nats context %q: %w", cfg.Context, err)
	}
	opts, err = settings.NATSOptions(nats.Timeout(cfg.Timeout))
	if err != nil {
		return "", nil, fmt.Errorf("NATS connection settings: %w", err)
	}
	return settings.ServerURL(), opts, nil
}
