package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the expected output anew")

// masks hide what differs from run to run and machine to machine.
var masks = []struct{ pattern, with string }{
	{`/\S*/(volumekit-quickstart|quickstart-test)-\d+\S*`, "DIR"},
	{`\d+(\.\d+)?(µs|ms|s)\b`, "TIME"},
	{`(?m)^(\s+token\s.*?)\d+ B`, "${1}NNN B"},
	{`(?m)\S{10}(  r[ow] node:)`, "MODE      $1"},
	// Whether there are huge pages is the machine's affair.
	{`(?s)pod default/huge\n.*?\n\n`, "pod default/huge\n(left out)\n\n"},
	{`[67] of 7 pods are ready after TIME(; 1 skipped: .*)?`, "N of 7 pods are ready after TIME"},
}

func masked(text string) string {
	for _, m := range masks {
		text = regexp.MustCompile(m.pattern).ReplaceAllString(text, m.with)
	}
	return text
}

func TestOnce(t *testing.T) {
	forUsers(t, func(t *testing.T, u user) {
		p := u.start(t, "-once")
		code, text := p.end()
		p.skipIfForbidden()
		const golden = "testdata/once.txt"
		if *update {
			write(t, ".", golden, masked(text))
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if code != 0 || masked(text) != string(want) {
			t.Errorf("exit code %d, output:\n%s\nwant\n%s", code, masked(text), want)
		}
	})
}

func TestOnceWithBadManifests(t *testing.T) {
	forUsers(t, func(t *testing.T, u user) {
		more := map[string]string{
			"80-bad.yaml":  configMap("a") + "dta: {}\n",
			"90-wait.yaml": podHead + "  containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}]}]\n  volumes: [{name: v, configMap: {name: nowhere}}]\n",
		}
		p := u.start(t, "-once", "-manifests", u.manifests(t, more))
		code, text := p.end()
		p.skipIfForbidden()
		if code != 1 {
			t.Errorf("exit code %d", code)
		}
		for _, want := range []string{
			`bad manifest: \S*80-bad.yaml:5: dta: unknown field`,
			`of 8 pods are ready`,
			`waiting for ConfigMap default/nowhere: there is none`,
			`(?m)^    conf.d/nginx.conf +30 B  -rw-------$`,
			`0 mounts and 0 files or folders are left`,
		} {
			if !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	})
}

// TestFollow goes through what a user does while the program runs.
func TestFollow(t *testing.T) {
	forUsers(t, func(t *testing.T, u user) {
		dir, root := u.manifests(t, nil), filepath.Join(u.own(t), "root")
		p := u.start(t, "-manifests", dir, "-root", root)
		edit := func(name, from, to string) { // as editors do it, by a rename
			t.Helper()
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || !strings.Contains(string(text), from) {
				t.Fatalf("%s has no %q: %v", name, from, err)
			}
			write(t, dir, name+"~", strings.Replace(string(text), from, to, 1))
			if err := os.Rename(filepath.Join(dir, name+"~"), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		p.await("kill -9 (\\d+)|no private mount namespace")
		p.skipIfForbidden()

		edit("10-objects.yaml", "edit me", "edited")
		p.await(`pod default/web: files of volume config changed, \S+ after the edit: motd`)
		edit("40-introspect.yaml", "app: introspect", "app: other")
		p.await(`pod default/introspect: files of volume podinfo changed, \S+ after the edit: labels`)
		edit("30-database.yaml", "sizeLimit: 16Mi", "sizeLimit: 8Mi")
		p.await(`pod default/database as it was before is gone, and so are its volumes`)
		p.await(`(?s)pod default/database is ready, .*/dev/shm  +emptyDir  +8 MiB`)

		write(t, dir, "waits.yaml", podHead+"  containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}]}]\n  volumes: [{name: v, secret: {secretName: late}}]\n")
		p.await(`(?s)pod default/p is not ready.*waiting for Secret default/late: there is none`)
		write(t, dir, "late.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: late}\nstringData: {key: value}\n")
		p.await(`(?s)pod default/p is ready.* key +5 B`)

		edit("20-web.yaml", "metadata:", "metadtaa:")
		p.await(`bad manifest: \S*20-web.yaml:4: metadtaa: unknown field`)
		remove(t, dir, "60-node-agent.yaml") // another file's fault keeps nothing
		p.await(`pod default/node-agent is gone, and so are its volumes`)

		// The next agent does not know the pod that cannot be read, and takes
		// nothing away.
		agent, _ := strconv.Atoi(p.await(`kill -9 (\d+)`)[1])
		kill(t, agent)
		p.await(`The agent was killed`)
		p.await(`nothing is taken away until all manifests are good`)
		m := p.await(`agent pid (\d+): of the (\d+) mounts that the killed agent left, (\d+) serve on, the same mount ids; (\d+) were made anew`)
		if m[2] != m[3] || m[2] == "0" || m[4] != "0" {
			t.Errorf("after the restart: %s", m[0])
		}
		edit("20-web.yaml", "metadtaa:", "metadata:")
		p.await(`all manifests are good now`)
		edit("10-objects.yaml", "edited", "edited again")
		p.await(`(?s)all manifests.*pod default/web: files of volume config changed, \S+ after the edit: motd`)

		p.signal(syscall.SIGINT)
		code, text := p.end()
		if code != 0 || !strings.Contains(text, "0 mounts and 0 files or folders are left") || strings.Contains(text, "default/web as it was before") {
			t.Errorf("exit code %d, output:\n%s", code, text)
		}
		if _, err := os.Stat(root); err == nil {
			t.Error("the root that it made is left")
		}
	})
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestKilled kills each of the processes; the others clean up.
func TestKilled(t *testing.T) {
	forUsers(t, func(t *testing.T, u user) {
		for _, who := range []string{"command", "keeper", "both"} {
			t.Run(who, func(t *testing.T) {
				p := u.start(t)
				p.await("Ctrl-C takes everything away|no private mount namespace")
				p.skipIfForbidden()
				pid := p.cmd.Process.Pid
				if who == "keeper" {
					pid = p.childOf(pid)
				}
				if who == "both" {
					kill(t, p.childOf(pid))
				}
				kill(t, pid)
				p.await("0 mounts and 0 files or folders are left")
				code, text := p.end()
				if code == 0 || who == "keeper" && !strings.Contains(text, "the keeper of the namespaces was killed") {
					t.Errorf("exit code %d, output:\n%s", code, text)
				}
			})
		}
	})
}

// TestInterruptedWhileStarting interrupts the program at all stages of its
// start. That takes time, so the signals come at times, not at events.
func TestInterruptedWhileStarting(t *testing.T) {
	forUsers(t, func(t *testing.T, u user) {
		signals := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
		for i := range 6 {
			p := u.start(t, "-once")
			<-time.After(time.Duration(i) * 15 * time.Millisecond)
			_ = p.cmd.Process.Signal(signals[i%len(signals)])
			if i%2 == 0 { // as a terminal does, to all of them
				_ = syscall.Kill(-p.cmd.Process.Pid, signals[i%len(signals)])
			}
			code, text := p.end()
			p.skipIfForbidden()
			if code != 0 && code != 1 && (i > 0 && strings.Contains(text, "pod ") || code < 128) {
				t.Errorf("after %d ms: exit code %d, output:\n%s", i*15, code, text)
			}
			p.nothingLeft()
		}
	})
}

// TestKilledWhileEnding: the agent that follows goes on with taking away.
func TestKilledWhileEnding(t *testing.T) {
	forUsers(t, func(t *testing.T, u user) {
		p := u.start(t)
		m := p.await(`kill -9 (\d+)|no private mount namespace`)
		p.skipIfForbidden()
		agent, _ := strconv.Atoi(m[1])
		if err := syscall.Kill(agent, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		p.signal(syscall.SIGINT)
		kill(t, agent)
		if code, text := p.end(); code != 0 || !strings.Contains(text, "starting it again") || !strings.Contains(text, "0 mounts and 0 files or folders are left") {
			t.Errorf("exit code %d, output:\n%s", code, text)
		}
	})
}

// TestBusy: what cannot be taken away is told, and a second Ctrl-C gives up.
func TestBusy(t *testing.T) {
	nsenter, err := exec.LookPath("nsenter")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("only root can keep a mount busy from outside, with nsenter")
	}
	t.Parallel()
	root := filepath.Join(user{}.own(t), "root")
	p := user{}.start(t, "-root", root)
	agent := p.await(`kill -9 (\d+)|no private mount namespace`)[1]
	p.skipIfForbidden()
	table, err := os.ReadFile("/proc/" + agent + "/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	target := regexp.MustCompile(regexp.QuoteMeta(root) + `/pods/\S*/shm\b`).FindString(string(table))
	busy := exec.Command(nsenter, "-t", agent, "-m", "sh", "-c", `cd "$1" && echo busy && read line`, "sh", target)
	in, err := busy.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := busy.StdoutPipe()
	if err == nil {
		err = busy.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = busy.Wait()
	}()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("nobody stands in %q: %v", target, err)
	}
	p.signal(syscall.SIGTERM)
	again := time.NewTicker(oneCtrlC * 3 / 2) // signals that are close are one
	defer again.Stop()
	<-again.C
	p.signal(syscall.SIGTERM)
	code, text := p.end()
	for _, want := range []string{
		`left: pod default/database, volume shm: .*busy`, `not drained after \S+: 1 mounts and`, `left: mount ` + regexp.QuoteMeta(target),
		`remove .*root: directory not empty`,
	} {
		if code != 1 || !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("exit code %d, no %q in\n%s", code, want, text)
		}
	}
	// The mount is gone with the namespace: the next run takes the rest away.
	_ = in.Close()
	_ = busy.Wait()
	next := user{}.start(t, "-once", "-root", root)
	if code, text := next.end(); code != 0 || !strings.Contains(text, "0 mounts and 0 files or folders are left") {
		t.Errorf("the next run: exit code %d, output:\n%s", code, text)
	}
}

func TestSignalsEndItCleanly(t *testing.T) {
	forUsers(t, func(t *testing.T, u user) {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
			p := u.start(t)
			p.await("Ctrl-C takes everything away|no private mount namespace")
			p.skipIfForbidden()
			if err := syscall.Kill(-p.cmd.Process.Pid, s); err != nil {
				t.Fatal(err)
			}
			if code, text := p.end(); code != 0 || !strings.Contains(text, "0 mounts and 0 files or folders are left") {
				t.Errorf("%v: exit code %d, output:\n%s", s, code, text)
			}
		}
	})
}

func TestNobodyReads(t *testing.T) {
	forUsers(t, func(t *testing.T, u user) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		defer w.Close()
		p := u.startWith(t, func(cmd *exec.Cmd) { cmd.Stdout = w }, "-root", "root")
		if code, text := p.end(); code == 128+int(syscall.SIGPIPE) || strings.Contains(text, "panic") {
			t.Errorf("exit code %d, output:\n%s", code, text)
		}
		p.skipIfForbidden()
	})
}

func TestRoots(t *testing.T) {
	forUsers(t, func(t *testing.T, u user) {
		once := func(want int, pattern string, args ...string) {
			t.Helper()
			p := u.start(t, append([]string{"-once"}, args...)...)
			code, text := p.end()
			p.skipIfForbidden()
			if code != want || !regexp.MustCompile(pattern).MatchString(text) {
				t.Errorf("%v: exit code %d, no %q in\n%s", args, code, pattern, text)
			}
		}
		dir := u.own(t)
		empty, full, readOnly := filepath.Join(dir, "empty dir"), filepath.Join(dir, "full"), filepath.Join(dir, "read-only")
		link := filepath.Join(dir, "link")
		for _, d := range []string{empty, full, readOnly} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		write(t, full, "file", "precious")
		if err := os.Symlink(empty, link); err != nil {
			t.Fatal(err)
		}
		if u.uid != 0 {
			if err := os.Chown(empty, u.uid, u.uid); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(readOnly, 0o555); err != nil {
			t.Fatal(err)
		}
		once(0, "0 mounts", "-root", "relative")
		once(0, "0 mounts", "-root", empty)
		once(0, "0 mounts", "-root", link)
		once(1, "is not empty", "-root", full)
		once(1, "not a folder", "-root", filepath.Join(full, "file"))
		once(1, "no such file or directory", "-root", filepath.Join(dir, "nowhere", "deep"))
		if u.name != "root" {
			once(1, "cannot be written to", "-root", readOnly)
		}
		if left, err := os.ReadDir(empty); err != nil || len(left) > 0 {
			t.Errorf("left in the root: %v, %v", left, err)
		}
		if text, err := os.ReadFile(filepath.Join(full, "file")); err != nil || string(text) != "precious" {
			t.Errorf("%q, %v", text, err)
		}
		once(1, "-manifests: .*no such file or directory", "-manifests", filepath.Join(dir, "nowhere"))
		once(1, "-manifests: .*not a folder", "-manifests", filepath.Join(full, "file"))
		once(2, "unexpected argument", "more")
		once(2, "must be positive", "-timeout", "0")

		first := u.start(t, "-root", empty)
		first.await("Ctrl-C takes everything away")
		once(1, "in use by another quickstart", "-root", link)
		first.signal(syscall.SIGINT)
		if code, text := first.end(); code != 0 {
			t.Errorf("exit code %d, output:\n%s", code, text)
		}
	})
}

func TestOddSurroundings(t *testing.T) {
	forUsers(t, func(t *testing.T, u user) {
		p := u.startWith(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "TMPDIR=/nowhere") }, "-once")
		if code, text := p.end(); code != 1 || !strings.Contains(text, "TMPDIR names where, now /nowhere") {
			t.Errorf("exit code %d, output:\n%s", code, text)
		}
		odd := filepath.Join(u.own(t), "a b\t$c")
		if err := os.Mkdir(odd, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(odd, 0o777); err != nil {
			t.Fatal(err)
		}
		p = u.startWith(t, func(cmd *exec.Cmd) {
			// The mask of a login shell can be anything.
			cmd.Args = append([]string{"sh", "-c", `umask 0777; exec "$@"`, "sh", cmd.Path}, cmd.Args[1:]...)
			cmd.Path = "/bin/sh"
			cmd.Env = append(cmd.Env, "TMPDIR="+odd)
			cmd.Args[4] = self(t)
		}, "-once")
		code, text := p.end()
		p.skipIfForbidden()
		if code != 0 || !strings.Contains(text, "0 mounts and 0 files") {
			t.Errorf("exit code %d, output:\n%s", code, text)
		}
		if left, err := os.ReadDir(odd); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

// self is the path of the test binary where any user can run it.
func self(t *testing.T) string {
	t.Helper()
	dir := user{}.own(t)
	binary, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "quickstart")
	if err := os.WriteFile(path, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNamespacesForbidden(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a namespace of several users in which to forbid it")
	}
	t.Parallel()
	p := user{uid: 0}.startWith(t, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, withoutNamespaces+"=1")
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: nobody + 1}}
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = all, all
		cmd.SysProcAttr.GidMappingsEnableSetgroups = true
		if err := os.Chmod(cmd.Dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}, "-once")
	code, text := p.end()
	if code == 3 {
		t.Skip("the surroundings cannot be made here: " + text)
	}
	if code != 1 || !strings.Contains(text, "This machine does not let ordinary users have user namespaces.") {
		t.Errorf("exit code %d, output:\n%s", code, text)
	}
}
