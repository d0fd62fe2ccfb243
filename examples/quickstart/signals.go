package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// oneCtrlC is how far apart the signals of one Ctrl-C may arrive: the terminal
// sends it to all processes, and the parents hand it on.
const oneCtrlC = 500 * time.Millisecond

// interrupts returns a context that ends when the program is asked to end
// (Ctrl-C, SIGTERM, a closed terminal), and one that ends when it is asked
// again. ask does what the first signal does, stop ends both.
func interrupts() (asked, insisted context.Context, ask, stop func()) {
	asked, ask = context.WithCancel(context.Background())
	insisted, insist := context.WithCancel(context.Background())
	signals := subscribe()
	go func() {
		var first time.Time
		for range signals {
			switch {
			case first.IsZero():
				first = time.Now()
				ask()
			case time.Since(first) > oneCtrlC:
				insist()
			}
		}
	}()
	return asked, insisted, ask, func() {
		signal.Stop(signals)
		close(signals)
		ask()
		insist()
	}
}

// subscribe listens to the signals that ask for an end, but for those that
// whoever started the program wants to be ignored (nohup).
func subscribe() chan os.Signal {
	signals := make(chan os.Signal, 8)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	return signals
}
