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
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/volumekit/volumekit/csi/csitest"
)

// asProgram makes the test binary the program.
const asProgram = "VOLUMEKIT_STANDALONE_CSI_TEST_PROGRAM"

// slow is how long a run may take on a slow machine.
const slow = time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(start())
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		_, _ = os.Stderr.WriteString("goroutines left behind: " + err.Error() + "\n")
		code = 1
	}
	os.Exit(code)
}

// program is a run of the program.
type program struct {
	t    *testing.T
	cmd  *exec.Cmd
	tmp  string // its TMPDIR
	pipe io.ReadCloser
	out  *bufio.Reader
	text string // what was read so far
	late *time.Timer
}

// forUsers runs a test as those who can run the program here.
func forUsers(t *testing.T, test func(t *testing.T, uid int)) {
	uids := map[string]int{"ordinary": os.Geteuid()}
	if os.Geteuid() == 0 {
		uids = map[string]int{"root": 0, "ordinary": 65534}
	}
	for name, uid := range uids {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, uid)
		})
	}
}

// run starts the program. When the test ends, nothing of it may be left.
func run(t *testing.T, uid int, args ...string) *program {
	t.Helper()
	tmp, err := os.MkdirTemp("", "standalone-csi-test-")
	if err == nil {
		err = errors.Join(os.Chown(tmp, uid, -1), os.Chmod(tmp, 0o755))
	}
	r, w, pipeErr := os.Pipe()
	if err := errors.Join(err, pipeErr); err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, tmp: tmp, pipe: r, out: bufio.NewReader(r), cmd: exec.Command("/proc/self/exe", args...)}
	p.cmd.Dir = tmp
	p.cmd.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+tmp,
		"GORACE=atexit_sleep_ms=0") // with the race detector, each process would take a second to end
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if uid != os.Geteuid() {
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	p.late = time.AfterFunc(slow, func() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) })
	t.Cleanup(func() {
		_ = p.pipe.Close()
		if err := os.Remove(tmp); err != nil {
			t.Errorf("left in TMPDIR: %v\n%s", err, p.text)
		}
	})
	return p
}

// await reads until a line matches, and returns the groups of the match; nil if
// the program ends before.
func (p *program) await(pattern string) []string {
	re := regexp.MustCompile(pattern)
	for {
		line, err := p.out.ReadString('\n')
		p.text += line
		if m := re.FindStringSubmatch(line); m != nil || err != nil {
			return m
		}
	}
}

// end returns when all processes of the run have ended, which is when nobody can
// write to the pipe any more.
func (p *program) end() (code int) {
	p.t.Helper()
	rest, _ := io.ReadAll(p.out)
	p.text += string(rest)
	_ = p.cmd.Wait() // what it says is in the state too
	if !p.late.Stop() {
		p.t.Fatalf("it has not ended within %v:\n%s", slow, p.text)
	}
	if strings.Contains(p.text, "no private mount namespace") {
		p.t.Skip("this machine forbids namespaces: " + p.text)
	}
	if table, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(table), p.tmp) {
		p.t.Errorf("mounts are left (%v):\n%s", err, table)
	}
	return p.cmd.ProcessState.ExitCode()
}

// well asserts that all went well.
func (p *program) well() {
	p.t.Helper()
	code := p.end()
	for _, want := range []string{
		`(?m)^ +CSI calls: CreateVolume, ValidateVolumeCapabilities, ControllerPublishVolume, NodeStageVolume, NodePublishVolume, NodePublishVolume$`,
		`(?m)^ +pod reader reads "written by the first pod"$`,
		`the driver hangs in NodePublishVolume: kill -9 \d+, the agent`,
		`the driver hangs at the end of NodeStageVolume: kill -9 \d+, the driver`,
		`the driver blocks NodeUnstageVolume: kill -9 \d+, the agent`,
		`NodeUnstageVolume \(Canceled\), NodeUnstageVolume, ControllerUnpublishVolume`,
		`left: no mount, no loop device, no record in the journal, no file in the root, no volume of the driver`,
	} {
		if !regexp.MustCompile(want).MatchString(p.text) {
			p.t.Errorf("no %q", want)
		}
	}
	if lines := strings.Count(p.text, "\n"); code != 0 || lines > 60 || p.t.Failed() {
		p.t.Errorf("exit code %d, %d lines:\n%s", code, lines, p.text)
	}
}

func TestModes(t *testing.T) {
	forUsers(t, func(t *testing.T, uid int) {
		for mode, want := range map[string][]string{
			"tmpfs": {"its file system has 64 MiB", "its file system has 128 MiB"},
			"bind":  {"the claim has 64Mi", "the claim has 128Mi", `pod late reads "written by the first pod"`},
		} {
			p := run(t, uid, "-mode", mode)
			p.well()
			for _, w := range want {
				if !strings.Contains(p.text, w) {
					t.Errorf("mode %s: no %q in\n%s", mode, w, p.text)
				}
			}
		}
	})
}

// TestLoopDevices is not parallel: that way the devices are its own.
func TestLoopDevices(t *testing.T) {
	for _, mode := range []string{"", "xfs", "ext4"} {
		t.Run("mode "+mode, func(t *testing.T) {
			p := run(t, os.Geteuid(), "-mode", mode)
			if line := p.await(`.*mode (ext4|xfs):.*`); line != nil {
				p.end()
				t.Skip(line[0])
			}
			p = run(t, os.Geteuid(), "-mode", mode)
			p.well()
			if mode != "" && !strings.Contains(p.text, `pod late reads "written by the first pod"`) {
				t.Errorf("the content is gone:\n%s", p.text)
			}
			noLoops(t)
		})
	}
	t.Run("killed", func(t *testing.T) {
		p := run(t, os.Geteuid())
		p.await(`^\[4/8\]`)
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		p.end()
		noLoops(t)
		left, err := filepath.Glob(filepath.Join(p.tmp, "standalone-csi-*"))
		for _, dir := range left { // nobody was left to remove it, but it is empty
			err = errors.Join(err, os.Remove(dir))
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// noLoops waits until the kernel has freed the loop devices of the program.
func noLoops(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(slow)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		left := ""
		devices, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
		for _, d := range devices {
			text, _ := os.ReadFile(d)
			if strings.Contains(string(text), csitest.VolumeID("first")) || strings.Contains(string(text), csitest.VolumeID("second")) {
				left = d + ": " + string(text)
			}
		}
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a loop device is left: %s", left)
		}
	}
}

// TestEnds ends the program, and each of its processes, in the middle.
func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		says string
		end  func(p *program, driver, agent int) error
	}{
		"Ctrl-C":     {"interrupted", func(p *program, _, _ int) error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT) }},
		"terminated": {"interrupted", func(p *program, _, _ int) error { return p.cmd.Process.Signal(syscall.SIGTERM) }},
		"hung up":    {"interrupted", func(p *program, _, _ int) error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGHUP) }},
		"killed":     {"interrupted", func(p *program, _, _ int) error { return p.cmd.Process.Kill() }},
		"show killed": {"the process in the private namespace: signal: killed", func(_ *program, driver, _ int) error {
			return syscall.Kill(parentOf(driver), syscall.SIGKILL)
		}},
		"driver killed": {"the driver has ended unexpectedly: signal: killed", func(_ *program, driver, _ int) error {
			return syscall.Kill(driver, syscall.SIGKILL)
		}},
		"agent killed": {"the agent has ended unexpectedly: signal: killed", func(_ *program, _, agent int) error {
			return syscall.Kill(agent, syscall.SIGKILL)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			forUsers(t, func(t *testing.T, uid int) {
				for range 10 { // it may be faster than the test
					p := run(t, uid, "-mode", "bind")
					driver, agent := p.await(`driver .*: pid (\d+)`), p.await(`agent: pid (\d+)`)
					if driver == nil || agent == nil {
						p.end()
						t.Fatalf("it did not start:\n%s", p.text)
					}
					err := c.end(p, number(t, driver[1]), number(t, agent[1]))
					code := p.end()
					if err == nil && code != 0 && regexp.MustCompile(`(?m)^standalone-csi: (step .*: )?`+c.says+`$`).MatchString(p.text) {
						return
					}
					if !strings.Contains(p.text, "left: no mount") {
						t.Fatalf("%v, exit code %d, no %q in\n%s", err, code, c.says, p.text)
					}
				}
				t.Error("it always was faster than the test")
			})
		})
	}
}

// TestNobodyListens: what reads the output may go away, as head does.
func TestNobodyListens(t *testing.T) {
	forUsers(t, func(t *testing.T, uid int) {
		p := run(t, uid)
		p.await(`agent: pid`)
		_ = p.pipe.Close()
		_ = p.cmd.Wait() // what it says is of no interest
		p.late.Stop()
	})
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// parentOf returns the parent of a process; of none that makes 0 a process that
// cannot be killed.
func parentOf(pid int) int {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, _ := strings.Cut(string(text), ") ") // state, parent
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 1 << 30
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// TestInterruptedWhileStarting interrupts the program at all stages of its
// start. That takes time, so the signals come at times, not at events.
func TestInterruptedWhileStarting(t *testing.T) {
	forUsers(t, func(t *testing.T, uid int) {
		for i := range 5 {
			p := run(t, uid)
			<-time.After(time.Duration(i) * 10 * time.Millisecond)
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT)
			p.end() // a signal before the program listens ends it, too
		}
	})
}

func TestFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"there are tmpfs, bind, ext4 and xfs": {"-mode", "loop"},
		`unexpected argument "more"`:          {"more"},
		"flag provided but not defined":       {"-keep"},
	} {
		p := run(t, os.Geteuid(), args...)
		if code := p.end(); code != 2 || !strings.Contains(p.text, want) {
			t.Errorf("exit code %d, output:\n%s", code, p.text)
		}
	}
	p := run(t, os.Geteuid(), "-help")
	if code := p.end(); code != 0 {
		t.Errorf("exit code %d, output:\n%s", code, p.text)
	}
}
