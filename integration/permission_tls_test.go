package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// authority signs the certificates of a test.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue writes a certificate and its key; the first one is the authority's own.
func (a *authority) issue(t *testing.T, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, signer = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, private.Public(), signer)
	require.NoError(t, err)
	if a.cert == nil {
		a.cert, err = x509.ParseCertificate(der)
		require.NoError(t, err)
		a.key = private
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	cert, key = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	require.NoError(t, errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600),
	))
	return cert, key
}

// certified are the users of the configuration files with a client's certificate.
type certified struct {
	passwords

	ca, cert, key string
}

func (c certified) option(t *testing.T, user string) nats.Option {
	t.Helper()
	return func(o *nats.Options) error {
		return errors.Join(c.passwords.option(t, user)(o), nats.RootCAs(c.ca)(o), nats.ClientCert(c.cert, c.key)(o))
	}
}

func (c certified) flags(t *testing.T, user string) []string {
	t.Helper()
	return append(c.passwords.flags(t, user), "--tlsca", c.ca, "--tlscert", c.cert, "--tlskey", c.key)
}

// TestPermissionTLS: with the shipped TLS block, who has a certificate comes in with
// its user, and nobody else.
func TestPermissionTLS(t *testing.T) {
	a := &authority{dir: t.TempDir()}
	c := certified{}
	c.ca, _ = a.issue(t, "ca")
	c.cert, c.key = a.issue(t, "client")
	cert, key := a.issue(t, "server")

	dir := guardedFiles(t)
	file := filepath.Join(dir, "nats-server.conf")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), `# include "tls.conf"`)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), `# include "tls.conf"`, `include "tls.conf"`, 1)), 0o600))
	opts := guardedOptions(t, dir, map[string]string{"EXEC_TLS_CERT": cert, "EXEC_TLS_KEY": key, "EXEC_TLS_CA": c.ca})
	g := newGuarded(t, opts, c)

	require.Contains(t, g.ok("observer", "workers"), "no workers")
	require.ErrorIs(t, publish("exec.submit.acme.default")(t, g, g.as(t, "demo")), errRefused)
	require.NoError(t, publish("exec.submit.demo.default")(t, g, g.as(t, "demo")))
	_, err = nats.Connect(g.url, passwords{}.option(t, "demo"), nats.RootCAs(c.ca))
	require.Error(t, err, "a client without a certificate came in")
	_, err = nats.Connect(g.url, passwords{}.option(t, "demo"), nats.ClientCert(c.cert, c.key))
	require.ErrorAs(t, err, new(x509.UnknownAuthorityError), "a client trusted a server that its authority did not sign")
	foreign := certified{ca: c.ca}
	foreign.cert, foreign.key = (&authority{dir: t.TempDir()}).issue(t, "foreign")
	_, err = nats.Connect(g.url, foreign.option(t, "demo"))
	require.Error(t, err, "a certificate of another authority let somebody in")
}
