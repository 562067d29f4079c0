package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
)

// fakeNsc stands in for nsc: it writes down what it is asked, an argument a line, and
// answers as nsc does where the script needs an answer.
const fakeNsc = `#!/bin/sh
printf '%s\n' "$@" --- >>"$NSC_LOG"
case "$*" in
*"--sk generate"*)
	echo "[ OK ] added signing key $(head -n 1 "$NSC_KEYS")" >&2
	sed -i 1d "$NSC_KEYS" ;;
"describe account"*) echo "\"$NSC_OBSERVER\"" ;;
esac
`

// trust is an operator with accounts and users, made by carrying out what the shipped
// script asks of nsc.
type trust struct {
	operator nkeys.KeyPair
	accounts map[string]*account
	signers  map[string]nkeys.KeyPair // by public key
	roles    map[string]nkeys.KeyPair // by account and role
	creds    map[string]string        // file by user
	dir      string
}

type account struct {
	key    nkeys.KeyPair
	claims *jwt.AccountClaims
	signed string
	tokens map[string]string // activation by subject
}

func public(t *testing.T, key nkeys.KeyPair) string {
	t.Helper()
	pub, err := key.PublicKey()
	require.NoError(t, err)
	return pub
}

func (c *trust) newAccount(t *testing.T, name string) *account {
	t.Helper()
	key, err := nkeys.CreateAccount()
	require.NoError(t, err)
	claims := jwt.NewAccountClaims(public(t, key))
	claims.Name = name
	a := &account{key: key, claims: claims, tokens: map[string]string{}}
	c.accounts[name] = a
	return a
}

// runNsc runs the shipped script and returns its commands.
func (c *trust) runNsc(t *testing.T) [][]string {
	t.Helper()
	var keys strings.Builder
	for range 16 {
		key, err := nkeys.CreateAccount()
		require.NoError(t, err)
		c.signers[public(t, key)] = key
		keys.WriteString(public(t, key) + "\n")
	}
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "nsc"), []byte(fakeNsc), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "keys"), []byte(keys.String()), 0o600))
	script, err := filepath.Abs(filepath.Join(shipped, "nsc.sh"))
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", script)
	cmd.Env = []string{
		"PATH=" + c.dir + ":" + os.Getenv("PATH"), "NSC_LOG=" + filepath.Join(c.dir, "log"), "NSC_KEYS=" + filepath.Join(c.dir, "keys"),
		"NSC_OBSERVER=" + public(t, c.accounts["EXEC_OBSERVER"].key),
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	log, err := os.ReadFile(filepath.Join(c.dir, "log"))
	require.NoError(t, err)
	var commands [][]string
	for text := range strings.SplitSeq(strings.TrimSuffix(string(log), "---\n"), "---\n") {
		commands = append(commands, strings.Split(strings.TrimSuffix(text, "\n"), "\n"))
	}
	return commands
}

// carryOut does what a command asks, as nsc would.
func (c *trust) carryOut(t *testing.T, command []string) {
	t.Helper()
	flags := map[string][]string{}
	for i := 2; i < len(command); i++ {
		if i+1 < len(command) && !strings.HasPrefix(command[i+1], "-") {
			flags[command[i]] = append(flags[command[i]], command[i+1])
			i++
			continue
		}
		flags[command[i]] = append(flags[command[i]], "")
	}
	one := func(name string) string {
		require.Len(t, flags[name], 1, "%s in %v", name, command)
		return flags[name][0]
	}
	switch strings.Join(command[:2], " ") {
	case "add operator", "add account", "describe account": // are there
	case "edit account":
		if _, limits := flags["--js-streams"]; limits {
			c.accounts[one("--name")].claims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
		}
	case "edit signing-key":
		scope := jwt.NewUserScope()
		scope.Key, scope.Role = one("--sk"), one("--role")
		scope.Template.Pub.Allow = flags["--allow-pub"]
		scope.Template.Sub.Allow = flags["--allow-sub"]
		c.accounts[one("--account")].claims.SigningKeys.AddScopedSigner(scope)
		require.Contains(t, c.signers, scope.Key, "the script did not read the key that nsc said")
		c.roles[one("--account")+"/"+scope.Role] = c.signers[scope.Key]
	case "add export":
		require.Contains(t, flags, "--service")
		require.Contains(t, flags, "--private")
		a := c.accounts[one("--account")]
		a.claims.Exports.Add(&jwt.Export{Name: one("--name"), Subject: jwt.Subject(one("--subject")), Type: jwt.Service, TokenReq: true})
	case "generate activation":
		activation := jwt.NewActivationClaims(one("--target-account"))
		activation.ImportSubject, activation.ImportType = jwt.Subject(one("--subject")), jwt.Service
		token, err := activation.Encode(c.accounts[one("--account")].key)
		require.NoError(t, err)
		require.NotEmpty(t, one("--output-file"))
		c.accounts[one("--account")].tokens[one("--subject")] = token
	case "add import":
		subject := one("--name")
		from := c.accounts["EXEC"]
		require.Contains(t, from.tokens, subject)
		c.accounts[one("--account")].claims.Imports.Add(&jwt.Import{
			Name: subject, Subject: jwt.Subject(subject), Account: public(t, from.key), Type: jwt.Service, Token: from.tokens[subject],
		})
	case "add user":
		c.addUser(t, one("--account"), one("--name"), one("-K"), flags["--tag"]...)
	default:
		require.Fail(t, "a command that the test does not know", "%v", command)
	}
}

// addUser writes a user's credentials; one without a role may everything.
func (c *trust) addUser(t *testing.T, in, name, role string, tags ...string) {
	t.Helper()
	key, err := nkeys.CreateUser()
	require.NoError(t, err)
	claims := jwt.NewUserClaims(public(t, key))
	claims.Name = name
	claims.Tags.Add(tags...)
	signer := c.accounts[in].key
	if role != "" {
		signer = c.roles[in+"/"+role]
		require.NotNil(t, signer, "no role %s in %s", role, in)
		claims.SetScoped(true)
		claims.IssuerAccount = public(t, c.accounts[in].key)
	}
	token, err := claims.Encode(signer)
	require.NoError(t, err)
	seed, err := key.Seed()
	require.NoError(t, err)
	file, err := jwt.FormatUserConfig(token, seed)
	require.NoError(t, err)
	c.creds[name] = filepath.Join(c.dir, name+".creds")
	require.NoError(t, os.WriteFile(c.creds[name], file, 0o600))
}

func newTrust(t *testing.T) *trust {
	t.Helper()
	c := &trust{accounts: map[string]*account{}, signers: map[string]nkeys.KeyPair{}, roles: map[string]nkeys.KeyPair{}, creds: map[string]string{}, dir: t.TempDir()}
	var err error
	c.operator, err = nkeys.CreateOperator()
	require.NoError(t, err)
	for _, name := range []string{"SYS", "EXEC", "EXEC_OBSERVER"} {
		c.newAccount(t, name)
	}
	commands := c.runNsc(t)
	require.True(t, slices.ContainsFunc(commands, func(words []string) bool { return words[1] == "import" }))
	for _, command := range commands {
		c.carryOut(t, command)
	}
	c.addUser(t, "EXEC", "acme", "publisher")
	c.addUser(t, "EXEC", "witness", "")
	c.addUser(t, "EXEC_OBSERVER", "onlooker", "")
	for _, a := range c.accounts {
		a.signed, err = a.claims.Encode(c.operator)
		require.NoError(t, err)
	}
	return c
}

// options of a server that trusts the operator.
func (c *trust) options(t *testing.T) *server.Options {
	t.Helper()
	claims := jwt.NewOperatorClaims(public(t, c.operator))
	claims.SystemAccount = public(t, c.accounts["SYS"].key)
	resolver := &server.MemAccResolver{}
	for _, a := range c.accounts {
		require.NoError(t, resolver.Store(public(t, a.key), a.signed))
	}
	return &server.Options{
		ServerName: "jwt", Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), MaxPayload: 8 << 20,
		JetStreamMaxStore: 8 << 30, JetStreamMaxMemory: 64 << 20, NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
		TrustedOperators: []*jwt.OperatorClaims{claims}, AccountResolver: resolver, SystemAccount: claims.SystemAccount,
	}
}

func (c *trust) option(t *testing.T, user string) nats.Option {
	t.Helper()
	require.Contains(t, c.creds, user)
	return nats.UserCredentials(c.creds[user])
}

func (c *trust) flags(t *testing.T, user string) []string {
	t.Helper()
	require.Contains(t, c.creds, user)
	return []string{"--creds", c.creds[user]}
}

// TestPermissionJWT: the roles of the script for nsc are those of the files: the whole
// path goes, and the same is refused.
func TestPermissionJWT(t *testing.T) {
	t.Parallel()
	c := newTrust(t)
	t.Run("path", func(t *testing.T) {
		t.Parallel()
		newGuarded(t, c.options(t), c).wholePath(t)
	})
	t.Run("refusals", func(t *testing.T) {
		t.Parallel()
		newGuarded(t, c.options(t), c).refusals(t)
	})
}
