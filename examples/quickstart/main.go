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
//
// The use of the library is in agent.go; that is the file to copy from. The
// others read manifests, print, and keep the namespaces.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

type options struct {
	manifests string
	root      string
	once      bool
	timeout   time.Duration
	json      bool
}

func main() { os.Exit(start()) }

func start() (code int) {
	o, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	// Whoever reads our output may go away (`| head`): what is mounted still
	// has to be taken away, so this must not end the process.
	signal.Ignore(syscall.SIGPIPE)

	// Three processes share the work; see processes_linux.go.
	stage, err := stageFromEnvironment()
	switch {
	case err != nil:
	case stage.Role == "":
		code, err = command(o)
	case stage.Role == roleKeeper:
		code, err = keep(stage)
	default:
		code, err = serve(o, stage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		return max(code, 1)
	}
	return code
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.manifests, "manifests", "", "`folder` of YAML and JSON files (default: those that ship with the program, copied to a temporary folder)")
	f.StringVar(&o.root, "root", "", "`folder` for the volumes, empty or new (default: a temporary one)")
	f.BoolVar(&o.once, "once", false, "show the volumes once, take them away, and end")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "how long pods may take to become ready, and volumes to go away")
	f.BoolVar(&o.json, "json", false, "print the manager's snapshot as JSON instead of the tree")
	if err := f.Parse(args); err != nil {
		return o, err // f has printed it
	}
	var err error
	switch {
	case f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q; see -help", f.Arg(0))
	case o.timeout <= 0:
		err = fmt.Errorf("-timeout %v: it must be positive", o.timeout)
	}
	if err != nil {
		fmt.Fprintln(out, "quickstart:", err)
	}
	return o, err
}

// serve is the agent's whole life.
func serve(o options, s stage) (code int, err error) {
	keepInherited()
	parent := os.Getppid()
	asked, insisted, ask, stop := interrupts()
	defer stop()
	if s.Ending { // the agent before this one was killed while it took things away
		ask()
	}
	o.root = s.Root
	if o.manifests == "" {
		o.manifests = s.Manifests
	}
	ok, err := run(asked, insisted, settings{options: o, restarted: s.Restarted, unread: ask})
	err = errors.Join(err, cleanUpInside(parent, &s.place))
	if err != nil || !ok {
		return 1, err
	}
	return 0, nil
}
