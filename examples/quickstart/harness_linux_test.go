package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test binary is the program too, so that it needs no building.
const (
	asProgram = "VOLUMEKIT_QUICKSTART_TEST_PROGRAM"
	// withoutNamespaces makes it one whose user may not make namespaces.
	withoutNamespaces = "VOLUMEKIT_QUICKSTART_TEST_FORBIDDEN"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(withoutNamespaces) != "":
		forbidNamespaces()
	case os.Getenv(asProgram) != "":
		os.Exit(start())
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		_, _ = os.Stderr.WriteString("goroutines left behind: " + err.Error() + "\n")
		code = 1
	}
	os.Exit(code)
}

// forbidNamespaces runs the program as an ordinary user where no user
// namespace can be made. The limit counts in the test's own namespace only.
func forbidNamespaces() {
	err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0)
	if err == nil {
		err = errors.Join(syscall.Setgid(nobody), syscall.Setuid(nobody))
	}
	if err == nil {
		_ = os.Unsetenv(withoutNamespaces)
		err = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	_, _ = os.Stderr.WriteString("setting up the test: " + err.Error() + "\n")
	os.Exit(3)
}

const (
	nobody = 65534
	// limit is how long anything may take, on a slow machine.
	limit = 20 * time.Second
)

// program is a run of the quickstart.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	tmp string // its TMPDIR

	mu      sync.Mutex
	out     string
	more    chan struct{} // closed when out has grown
	readers sync.WaitGroup
	code    chan int
}

// user is who runs a program.
type user struct {
	name string
	uid  int // 0: whoever runs the test
}

// users are those that the program can be run as here.
func users() []user {
	if os.Geteuid() == 0 {
		return []user{{"root", 0}, {"ordinary", nobody}}
	}
	return []user{{"ordinary", 0}}
}

// forUsers runs a test for each of them.
func forUsers(t *testing.T, test func(t *testing.T, u user)) {
	for _, u := range users() {
		t.Run(u.name, func(t *testing.T) {
			t.Parallel()
			test(t, u)
		})
	}
}

// own is a fresh folder that belongs to the user.
func (u user) own(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "quickstart-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if u.uid != 0 {
		err = os.Chown(dir, u.uid, u.uid)
	}
	if err = errors.Join(err, os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// manifests is a folder with the shipped manifests and others.
func (u user) manifests(t *testing.T, more map[string]string) string {
	t.Helper()
	dir := u.own(t)
	if err := os.CopyFS(dir, os.DirFS("manifests")); err != nil {
		t.Fatal(err)
	}
	for name, text := range more {
		write(t, dir, name, text)
	}
	return dir
}

// start starts the program. When the test ends, nothing of it may be left.
func (u user) start(t *testing.T, args ...string) *program {
	t.Helper()
	return u.startWith(t, func(*exec.Cmd) {}, args...)
}

func (u user) startWith(t *testing.T, change func(*exec.Cmd), args ...string) *program {
	t.Helper()
	p := &program{t: t, tmp: u.own(t), more: make(chan struct{}), code: make(chan int, 1)}
	p.cmd = exec.Command("/proc/self/exe", args...)
	p.cmd.Dir = p.tmp
	p.cmd.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+p.tmp,
		"GORACE=atexit_sleep_ms=0") // with the race detector, each process would take a second to end
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if u.uid != 0 {
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(u.uid), Gid: uint32(u.uid)}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	change(p.cmd)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	p.readers.Go(func() { p.read(r) })
	go func() {
		_ = p.cmd.Wait()
		status, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		if status.Signaled() {
			p.code <- 128 + int(status.Signal())
			return
		}
		p.code <- status.ExitStatus()
	}()
	t.Cleanup(p.nothingLeft)
	return p
}

func (p *program) read(r io.ReadCloser) {
	defer r.Close()
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		p.mu.Lock()
		p.out += line
		close(p.more)
		p.more = make(chan struct{})
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *program) output() (text string, more <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out, p.more
}

// await waits until the output matches, and returns the groups of the match.
func (p *program) await(pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		text, more := p.output()
		if m := re.FindStringSubmatch(text); m != nil {
			return m
		}
		select {
		case <-more:
		case code := <-p.code:
			p.code <- code
			p.readers.Wait()
			if text, _ := p.output(); !re.MatchString(text) {
				p.t.Fatalf("it ended with %d without %q:\n%s", code, pattern, text)
			}
		case <-late.C:
			p.t.Fatalf("no %q within %v:\n%s", pattern, limit, text)
		}
	}
}

func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// end waits for the end and returns the exit code and all that was printed.
func (p *program) end() (code int, text string) {
	p.t.Helper()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case code = <-p.code:
		p.code <- code
	case <-late.C:
		text, _ := p.output()
		p.t.Fatalf("it has not ended within %v:\n%s", limit, text)
	}
	p.readers.Wait()
	text, _ = p.output()
	return code, text
}

// processes lists the processes of the run: the command, the keeper, and the
// agent, as far as they are there.
func (p *program) processes() (pids []int) {
	entries, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		p.t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(e)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ") // state, parent, group...
		fields := strings.Fields(rest)
		if len(fields) < 3 || fields[0] == "Z" || fields[2] != strconv.Itoa(p.cmd.Process.Pid) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(e)))
		pids = append(pids, pid)
	}
	return pids
}

// childOf returns the process of the run whose parent is pid.
func (p *program) childOf(pid int) int {
	p.t.Helper()
	for _, child := range p.processes() {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(child) + "/stat")
		_, rest, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			return child
		}
	}
	p.t.Fatalf("process %d has no child", pid)
	return 0
}

// nothingLeft asserts that no process, mount or file of the run is left.
func (p *program) nothingLeft() {
	if p.t.Failed() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		return
	}
	// The pipe of the output is closed when the last process has ended.
	ended := make(chan struct{})
	go func() {
		p.readers.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(limit):
		p.t.Errorf("processes are left: %v", p.processes())
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
	text, _ := p.output()
	if table, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(table), p.tmp) {
		p.t.Errorf("mounts are left (%v):\n%s", err, table)
	}
	left, err := os.ReadDir(p.tmp)
	if err != nil || len(left) > 0 {
		p.t.Errorf("left in TMPDIR: %v, %v\n%s", left, err, text)
	}
}

// skipIfForbidden skips a test where this machine lets nobody make namespaces.
func (p *program) skipIfForbidden() {
	p.t.Helper()
	if text, _ := p.output(); strings.Contains(text, "no private mount namespace") {
		p.t.Skip("this machine forbids namespaces: " + text)
	}
}
