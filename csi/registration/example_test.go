package registration_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/csi/registration"
	"github.com/volumekit/volumekit/csi/registration/registrationtest"
)

// drivers is a handler that says what happens to it.
type drivers struct{ done chan struct{} }

func (d drivers) Validate(info registration.Info) error {
	_, err := registration.PickVersion(info.Versions)
	return err
}

func (d drivers) Register(_ context.Context, i registration.Instance) error {
	fmt.Println("there is", i.Name, "at", i.Endpoint)
	return nil
}

func (d drivers) Deregister(i registration.Instance) {
	fmt.Println("gone is", i.Name)
	close(d.done)
}

func Example() {
	dir, err := os.MkdirTemp("", "registry")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	handler := drivers{make(chan struct{})}
	watcher, err := registration.New(registration.Config{
		Dir:      dir,
		Handlers: map[string]registration.Handler{registration.CSIPlugin: handler},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- watcher.Run(ctx) }()

	// Usually another process does this.
	plugin, err := registrationtest.Start(filepath.Join(dir, "demo-reg.sock"), registrationtest.Info{
		Type: registration.CSIPlugin, Name: "demo.csi.example.org", Endpoint: "/csi/demo.sock", Versions: []string{"1.0.0"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	notice := <-plugin.Told()
	fmt.Println("registered:", notice.Registered)
	plugin.Stop()
	<-handler.done

	cancel()
	fmt.Println("end:", <-ended)
	// Output:
	// there is demo.csi.example.org at /csi/demo.sock
	// registered: true
	// gone is demo.csi.example.org
	// end: <nil>
}
