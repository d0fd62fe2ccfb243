// Command standalone-csi shows CSI without Kubernetes: a CSI driver, an agent
// that embeds volumekit, and between them volumes that are created, attached,
// staged, published to pods, expanded, and taken away again, by real calls and
// real mounts. On the way it kills both of them at bad moments.
//
//	go run ./examples/standalone-csi
//
// It needs no root: it works in a private mount namespace, and for an ordinary
// user in a private user namespace too. It leaves nothing behind, however it
// ends (an empty folder, if all its processes are killed at once). The exit code
// is 0 if all went well.
//
// The use of the library is in agent.go; that is the file to copy from. The
// driver is in driver.go, what is done with the two in show.go and steps.go, the
// processes and namespaces are in process.go and namespace.go.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"time"
)

// limit is how long it all may take.
const limit = 2 * time.Minute

func main() { os.Exit(start()) }

// start is the life of any process of the program.
func start() (code int) {
	role := os.Getenv(roleVariable)
	if role == "" {
		mode, err := parse(os.Args[1:], os.Stderr)
		switch {
		case errors.Is(err, flag.ErrHelp):
			return 0
		case err != nil:
			return 2
		}
		return report(command(mode))
	}
	return report(play(role))
}

func report(err error) (code int) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited(): // it has said why
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "standalone-csi:", err)
	return 1
}

func parse(args []string, out io.Writer) (mode string, err error) {
	f := flag.NewFlagSet("standalone-csi", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&mode, "mode", "", "what volumes are made of: tmpfs, bind (folders of the driver), or for root ext4 or xfs (on loop\n"+
		"devices); default: the first of ext4, xfs and tmpfs that is possible")
	if err := f.Parse(args); err != nil {
		return "", err // f has printed it
	}
	switch {
	case f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q; see -help", f.Arg(0))
	case !slices.Contains([]string{"", "tmpfs", "bind", "ext4", "xfs"}, mode):
		err = fmt.Errorf("-mode %s: there are tmpfs, bind, ext4 and xfs", mode)
	}
	if err != nil {
		fmt.Fprintln(out, "standalone-csi:", err)
	}
	return mode, err
}
