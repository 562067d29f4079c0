package createostest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

// The service has no capacity for the first creation, and makes the second one without
// telling its client.
func ExampleServer_Script() {
	server, err := createostest.New(createostest.Config{
		APIKey:  "key",
		Backend: createostest.Programs(func(context.Context, *createostest.Running) createostest.Exit { return createostest.Exit{} }),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server.Script(
		createostest.Rule{Op: createostest.CreateSandbox, Then: []createostest.Action{createostest.RetryAfter(503, 0)}},
		createostest.Rule{Op: createostest.CreateSandbox, Nth: 2, Then: []createostest.Action{createostest.CutAfterCommit()}},
	)
	if err := server.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		request, err := http.NewRequest("POST", server.URL()+"/v1/sandboxes", strings.NewReader(`{"shape":"s-1vcpu-256mb","name":"one"}`))
		if err != nil {
			fmt.Println(err)
			return
		}
		request.Header.Set("X-Api-Key", "key")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			fmt.Println("no answer")
			continue
		}
		body, err := io.ReadAll(response.Body)
		fmt.Println(response.StatusCode, string(body), err, response.Body.Close())
	}
	for _, box := range server.Sandboxes() {
		fmt.Println(box.Name, box.Status)
	}
	fmt.Println(server.Close())
	// Output:
	// 503 {"code":503,"message":"scripted","status":"error"} <nil> <nil>
	// no answer
	// one running
	// <nil>
}
