package wire_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

const schemaDir = "../../docs/schema"

// schemaDocument is a schema as plain JSON.
func schemaDocument(tb testing.TB, file string) map[string]any {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join(schemaDir, file))
	require.NoError(tb, err)
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	require.NoError(tb, err)
	object, ok := document.(map[string]any)
	require.True(tb, ok)
	return object
}

func compile(tb testing.TB, file string) *jsonschema.Schema {
	tb.Helper()
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	require.NoError(tb, compiler.AddResource(file, schemaDocument(tb, file)))
	schema, err := compiler.Compile(file)
	require.NoError(tb, err)
	return schema
}

func accepts(schema *jsonschema.Schema, body []byte) error {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return schema.Validate(document)
}

func TestSchemasAcceptTheGoldenFiles(t *testing.T) {
	schemas := map[string]*jsonschema.Schema{}
	for _, kind := range []string{"request", "result", "lease", "epoch"} {
		schemas[kind] = compile(t, kind+".v1.json")
	}
	counted := 0
	for name, data := range messages(t) {
		kind, _, _ := strings.Cut(name, "_")
		if schemas[kind] == nil {
			continue
		}
		for of, schema := range schemas {
			if of == kind {
				require.NoError(t, accepts(schema, data), name)
			} else {
				require.Error(t, accepts(schema, data), "%s as a %s", name, of)
			}
		}
		counted++
	}
	require.Equal(t, 2+len(results())+len(leases())+len(epochs()), counted)
}

func TestSchemasRefuseBadRecords(t *testing.T) {
	schema := compile(t, "lease.v1.json")
	for _, test := range badLeases() {
		if !test.semantic {
			require.Error(t, accepts(schema, test.body(t)), test.name)
		}
	}
	schema = compile(t, "epoch.v1.json")
	for _, test := range badEpochs() {
		if !test.semantic {
			require.Error(t, accepts(schema, test.body(t)), test.name)
		}
	}
}

func TestSchemaRefusesBadRequests(t *testing.T) {
	schema := compile(t, "request.v1.json")
	for _, test := range badRequests() {
		if !test.semantic {
			require.Error(t, accepts(schema, []byte(test.body)), test.name)
		}
	}
}

func TestSchemaRefusesBadResults(t *testing.T) {
	schema := compile(t, "result.v1.json")
	for name, change := range badResults() {
		result := ranResult(wire.Exited)
		result.ExitCode = new(0)
		change(result)
		// Around the encoder, which refuses it itself.
		data, err := json.Marshal(result)
		require.NoError(t, err)
		require.Error(t, accepts(schema, data), name)
	}
}

// TestSchemasHaveEveryField walks the Go types and the schemas together, so that
// a field which one of them lacks is found.
func TestSchemasHaveEveryField(t *testing.T) {
	for file, root := range map[string]reflect.Type{
		"request.v1.json": reflect.TypeFor[wire.Request](),
		"result.v1.json":  reflect.TypeFor[wire.Result](),
		"lease.v1.json":   reflect.TypeFor[wire.LeaseRecord](),
		"epoch.v1.json":   reflect.TypeFor[wire.EpochRecord](),
	} {
		document := schemaDocument(t, file)
		kind, _, _ := strings.Cut(file, ".")
		walk := schemaWalk{t: t, root: document, closed: kind != "result", written: kind != "request"}
		walk.check(strings.TrimSuffix(file, ".json"), root, document)
		require.Greater(t, walk.fields, 8)
	}
}

type schemaWalk struct {
	t    *testing.T
	root map[string]any
	// closed: the document has no fields but these. written: by us, so that what is
	// always written is required.
	closed, written bool
	fields          int
}

func (w *schemaWalk) check(path string, goType reflect.Type, schema map[string]any) {
	if reference, ok := schema["$ref"].(string); ok {
		schema = follow(w.t, w.root, "$defs", strings.TrimPrefix(reference, "#/$defs/"))
	}
	switch {
	case goType.Kind() == reflect.Pointer:
		w.check(path, goType.Elem(), schema)
	case goType == reflect.TypeFor[time.Time]():
		require.Equal(w.t, "date-time", schema["format"], path)
	case goType.Kind() == reflect.Struct:
		w.checkStruct(path, goType, schema)
	case goType.Kind() == reflect.Slice:
		require.Equal(w.t, "array", schema["type"], path)
		w.check(path+"[]", goType.Elem(), w.object(path, schema["items"]))
	case goType.Kind() == reflect.Map:
		require.Equal(w.t, "object", schema["type"], path)
		w.check(path+"{}", goType.Elem(), w.object(path, schema["additionalProperties"]))
	default:
		w.checkScalar(path, goType, schema)
	}
}

func (w *schemaWalk) checkStruct(path string, goType reflect.Type, schema map[string]any) {
	require.Equal(w.t, "object", schema["type"], path)
	if w.closed {
		require.Equal(w.t, false, schema["additionalProperties"], "%s must be closed", path)
	} else {
		require.NotContains(w.t, schema, "additionalProperties", "%s must be open", path)
	}
	properties := w.object(path, schema["properties"])
	var required []any
	if list, ok := schema["required"].([]any); ok {
		required = list
	}
	for field := range goType.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		require.NotEmpty(w.t, name, "%s.%s has no JSON name", path, field.Name)
		require.Contains(w.t, properties, name, "%s: the schema lacks the field", path)
		if w.written {
			// Everything that is always written can be relied upon, and nothing else.
			require.Equal(w.t, options == "", contains(required, name), "%s.%s: required", path, name)
		}
		w.check(path+"."+name, field.Type, w.object(path, properties[name]))
		w.fields++
	}
	require.Len(w.t, properties, goType.NumField(), "%s: the schema has a field that the type lacks", path)
}

func (w *schemaWalk) checkScalar(path string, goType reflect.Type, schema map[string]any) {
	if _, closed := schema["enum"]; closed {
		require.Equal(w.t, reflect.String, goType.Kind(), path)
		return
	}
	if _, constant := schema["const"]; constant {
		return
	}
	kinds := map[reflect.Kind]string{
		reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Int64: "integer",
		reflect.Uint64: "integer", reflect.Float64: "number",
	}
	require.Equal(w.t, kinds[goType.Kind()], schema["type"], path)
	if kinds[goType.Kind()] == "integer" {
		require.Contains(w.t, schema, "minimum", path)
	}
}

func (w *schemaWalk) object(path string, value any) map[string]any {
	object, ok := value.(map[string]any)
	require.True(w.t, ok, "%s: the schema has no description of what stands there", path)
	return object
}

func contains(list []any, word string) bool {
	for _, element := range list {
		if element == word {
			return true
		}
	}
	return false
}

// follow goes down a schema by names.
func follow(t *testing.T, schema map[string]any, names ...string) map[string]any {
	t.Helper()
	for _, name := range names {
		next, ok := schema[name].(map[string]any)
		require.True(t, ok, name)
		schema = next
	}
	return schema
}

// words joins the enum that stands below names in a schema.
func words(t *testing.T, schema map[string]any, names ...string) string {
	t.Helper()
	list, ok := follow(t, schema, names...)["enum"].([]any)
	require.True(t, ok)
	parts := make([]string, len(list))
	for i, element := range list {
		word, ok := element.(string)
		require.True(t, ok)
		parts[i] = word
	}
	return strings.Join(parts, ", ")
}

func TestSchemasListTheClosedSets(t *testing.T) {
	request, result := schemaDocument(t, "request.v1.json"), schemaDocument(t, "result.v1.json")
	for body, want := range map[string]string{
		with(`"output":"?"`):            words(t, request, "properties", "output"),
		with(`"lease":{"reuse":"?"}`):   words(t, request, "properties", "lease", "properties", "reuse"),
		with(`"output":["?"]`):          words(t, request, "properties", "output"),
		with(`"lease":{"reuse":false}`): words(t, request, "properties", "lease", "properties", "reuse"),
	} {
		_, bad := wire.DecodeRequest([]byte(body))
		require.NotNil(t, bad)
		require.Contains(t, bad.Message, "must be one of "+want+", not")
	}

	for field, change := range map[string]func(*wire.Result){
		"outcome":             func(r *wire.Result) { r.Outcome = "?" },
		"start_state":         func(r *wire.Result) { r.StartState = "?" },
		"containment.verdict": func(r *wire.Result) { r.Containment.Verdict = "?" },
		"containment.scope":   func(r *wire.Result) { r.Containment.Scope = "?" },
		"lease.disposition":   func(r *wire.Result) { r.Lease.Disposition = "?" },
	} {
		bad := ranResult(wire.TimedOut)
		change(bad)
		_, err := wire.EncodeResult(bad)
		path := append([]string{"properties"}, strings.Split(strings.ReplaceAll(field, ".", ".properties."), ".")...)
		require.ErrorContains(t, err, field+": must be one of "+words(t, result, path...)+", not")
	}

	var all []string
	for outcome := range strings.SplitSeq(words(t, result, "properties", "outcome"), ", ") {
		for _, reason := range wire.Outcome(outcome).Reasons() {
			require.True(t, reason.Valid())
			all = append(all, string(reason))
		}
	}
	require.Equal(t, strings.Join(all, ", "), words(t, result, "properties", "reason"))
	leaseBad, epochBad := *leases()["lease_ready.json"], *epochs()["epoch_alive.json"]
	leaseBad.State, epochBad.State = "?", "?"
	_, err := wire.EncodeLease(&leaseBad)
	require.ErrorContains(t, err, "state: must be one of "+words(t, schemaDocument(t, "lease.v1.json"), "properties", "state")+", not")
	_, err = wire.EncodeEpoch(&epochBad)
	require.ErrorContains(t, err, "state: must be one of "+words(t, schemaDocument(t, "epoch.v1.json"), "properties", "state")+", not")
	require.False(t, wire.Reason("").Valid())
	require.False(t, wire.Reason("output ").Valid())
}

func TestSchemaHasTheCeilings(t *testing.T) {
	document := schemaDocument(t, "request.v1.json")
	limits := follow(t, document, "properties", "limits", "properties")
	for _, name := range limitNames() {
		most, ok := follow(t, limits, name)["maximum"].(json.Number)
		require.True(t, ok, name)
		_, bad := wire.DecodeRequest([]byte(with(`"limits":{"` + name + `":` + string(most) + `}`)))
		require.Nil(t, bad, name)
		value, err := most.Int64()
		require.NoError(t, err)
		next, err := json.Marshal(value + 1)
		require.NoError(t, err)
		_, bad = wire.DecodeRequest([]byte(with(`"limits":{"` + name + `":` + string(next) + `}`)))
		require.NotNil(t, bad, name)
		require.Contains(t, bad.Message, "from 1 to "+string(most)+", not")
	}
}
