package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// console prints lines, and on a terminal a last line that is written over.
type console struct {
	broken func() // called when nobody reads any more
	width  func() int
	live   bool

	mu      sync.Mutex
	out     io.Writer
	faults  io.Writer
	status  string
	plainAt time.Time // when a status was last printed as a plain line, or the start
}

// newConsole prints to standard output or, where that is for JSON, to standard
// error. broken is called when that fails.
func newConsole(json bool, broken func()) *console {
	f := os.Stdout
	if json {
		f = os.Stderr
	}
	fd := int(f.Fd())
	c := &console{plainAt: time.Now(), out: f, faults: os.Stderr, broken: broken, live: term.IsTerminal(fd), width: func() int { return 0 }}
	if c.live {
		c.width = func() int {
			if width, _, err := term.GetSize(fd); err == nil {
				return width
			}
			return 80
		}
	}
	return c
}

// line prints a line, or several, for good.
func (c *console) line(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.erase()
	c.print(c.out, fmt.Sprintf(format, args...))
	c.draw()
}

// event is a line with the time of day.
func (c *console) event(format string, args ...any) {
	stamp := time.Now().Format("15:04:05.000") + "  "
	c.line("%s%s", stamp, wrap(fmt.Sprintf(format, args...), c.width(), len(stamp)))
}

// fault is a line on standard error.
func (c *console) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.erase()
	// That it cannot be told is no reason to end.
	_, _ = fmt.Fprintln(c.faults, fmt.Sprintf(format, args...))
	c.draw()
}

// progress replaces the last line on a terminal. Elsewhere it prints a plain
// line now and then.
func (c *console) progress(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text == c.status {
		return
	}
	if !c.live {
		if now := time.Now(); text != "" && now.Sub(c.plainAt) > time.Second {
			c.status, c.plainAt = text, now
			c.print(c.out, text)
		}
		return
	}
	c.erase()
	c.status = text
	c.draw()
}

func (c *console) clear() { c.progress("") }

func (c *console) erase() {
	if c.live && c.status != "" {
		fmt.Fprint(c.out, "\r\x1b[K")
	}
}

func (c *console) draw() {
	if c.live && c.status != "" {
		// A line that wraps could not be erased.
		fmt.Fprint(c.out, cut(c.status, max(c.width()-1, 10)))
	}
}

func (c *console) print(w io.Writer, text string) {
	if _, err := fmt.Fprintln(w, text); err != nil {
		c.broken()
	}
}

// cut shortens a text to at most width characters.
func cut(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	return string(runes[:width-1]) + "…"
}

// wrap breaks a text between words so that it fits into width columns, the
// lines but the first indented. A width of 0 leaves it as it is.
func wrap(text string, width, indent int) string {
	if width <= indent {
		return text
	}
	var b strings.Builder
	column := indent
	for i, word := range strings.Fields(text) {
		n := len([]rune(word))
		switch {
		case i == 0:
		case column+1+n > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// round makes a duration readable: three digits or so.
func round(d time.Duration) time.Duration {
	switch {
	case d > 10*time.Second:
		return d.Round(100 * time.Millisecond)
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	case d > 10*time.Millisecond:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(10 * time.Microsecond)
}

// bytesText writes a number of bytes with a binary unit.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	value, unit := float64(n), 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	if value == float64(int64(value)) || value >= 100 {
		return fmt.Sprintf("%.0f %s", value, units[unit])
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
