package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/config"
)

func TestFilesOfTheConnectionAreReadBeforeIt(t *testing.T) {
	there := filepath.Join(t.TempDir(), "there")
	require.NoError(t, os.WriteFile(there, nil, 0o600))
	require.NoError(t, config.NATS{Creds: there}.Readable())
	err := config.NATS{Creds: "/no/such.creds", TLSCA: "/no/such.pem", NKey: there}.Readable()
	var mistakes config.MistakesError
	require.ErrorAs(t, err, &mistakes)
	require.Len(t, mistakes, 2, "all at once")
	require.ErrorContains(t, err, "creds: cannot be read: open /no/such.creds")
	require.ErrorContains(t, err, "tlsca")
}
