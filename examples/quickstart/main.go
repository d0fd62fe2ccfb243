// Command quickstart shows what volumekit does: it reads Pods, ConfigMaps,
// Secrets, PersistentVolumes and claims from a folder of YAML files, makes the
// pods' volumes ready by real mounts, follows edits of the files, survives
// being killed, and takes everything away again.
//
// It needs no root and touches nothing outside of a temporary folder: it runs
// in a private mount namespace, and for an ordinary user in a private user
// namespace too.
//
//	go run ./examples/quickstart -once          # show it and end
//	go run ./examples/quickstart                # stay; edit the files, kill the agent, Ctrl-C
//	go run ./examples/quickstart -manifests DIR # with your own files
package main

import (
	"context"
	"embed"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

//go:embed manifests/*.yaml
var shipped embed.FS

type options struct {
	manifests string
	root      string
	once      bool
	timeout   time.Duration
	json      bool
}

func main() {
	var o options
	flag.StringVar(&o.manifests, "manifests", "", "folder of YAML files (default: the ones that ship with the program, copied to a temporary folder)")
	flag.StringVar(&o.root, "root", "", "folder for the volumes (default: a temporary one)")
	flag.BoolVar(&o.once, "once", false, "show the volumes once, take them away, and end")
	flag.DurationVar(&o.timeout, "timeout", 30*time.Second, "how long pods may take to become ready, and volumes to go away")
	flag.BoolVar(&o.json, "json", false, "print the manager's snapshot as JSON instead of the tree")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "quickstart: unexpected argument %q; see -help\n", flag.Arg(0))
		os.Exit(2)
	}
	// The folders are made by the outermost process, which outlives the rest.
	cleanup, err := prepare(&o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
	if code, done := splitProcess(); done {
		cleanup()
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

const (
	rootVariable      = "VOLUMEKIT_QUICKSTART_ROOT"
	manifestsVariable = "VOLUMEKIT_QUICKSTART_MANIFESTS"
)

// prepare makes the temporary folders in the outermost process and names them
// to the others through the environment.
func prepare(o *options) (cleanup func(), err error) {
	if root := os.Getenv(rootVariable); root != "" {
		o.root, o.manifests = root, os.Getenv(manifestsVariable)
		return func() {}, nil
	}
	temporary, err := os.MkdirTemp("", "volumekit-quickstart-")
	if err != nil {
		return nil, err
	}
	cleanup = func() { _ = os.RemoveAll(temporary) }
	if o.root == "" {
		o.root = filepath.Join(temporary, "root")
	}
	if o.manifests == "" {
		o.manifests = filepath.Join(temporary, "manifests")
		if err := copyShipped(o.manifests); err != nil {
			cleanup()
			return nil, err
		}
	}
	for variable, dir := range map[string]*string{rootVariable: &o.root, manifestsVariable: &o.manifests} {
		absolute, err := filepath.Abs(*dir)
		if err == nil {
			*dir = absolute
			err = os.Setenv(variable, absolute)
		}
		if err != nil {
			cleanup()
			return nil, err
		}
	}
	return cleanup, nil
}

func copyShipped(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return fs.WalkDir(shipped, "manifests", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := shipped.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, filepath.Base(path)), text, 0o644)
	})
}
