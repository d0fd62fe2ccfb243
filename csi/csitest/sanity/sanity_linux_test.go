package sanity

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// child names, in the environment of a second run of this binary, the case that
// it runs: a process can run the suite once, and mounts in a namespace that
// ends with it.
const child = "CSITEST_SANITY_CASE"

// driver names the driver's binary in the environment.
const driver = "CSITEST_DRIVER"

// testCase is a driver and how the suite is run over it.
type testCase struct {
	Name string
	// Flags of the driver.
	Flags []string
	// Access is the access type, "mount" or "block".
	Access string
	// Bytes is the size of volumes.
	Bytes int64
	// Mutable is whether the driver has mutable parameters.
	Mutable bool
	// Root is whether it needs the machine's root.
	Root bool
	// AttachLimit is whether the suite fills the node.
	AttachLimit bool
	// Least is how many specs have to pass: the suite skips what a driver does
	// not offer, and one that offers nothing would pass it.
	Least int
}

const minimal = "-controller-capabilities=CREATE_DELETE_VOLUME"

var cases = []testCase{
	{Name: "tmpfs-all", Flags: []string{"-all", "-mode=tmpfs", "-mutable=tier"}, Access: "mount", Bytes: 16 << 20, Mutable: true, Least: 72},
	{Name: "bind-all", Flags: []string{"-all", "-mode=bind", "-mutable=tier"}, Access: "mount", Bytes: 16 << 20, Mutable: true, Least: 72},
	{Name: "plain-all", Flags: []string{"-all", "-mode=plain", "-mutable=tier"}, Access: "mount", Bytes: 16 << 20, Mutable: true, Least: 72},
	{Name: "loop-all", Flags: []string{"-all", "-mode=loop", "-mutable=tier"}, Access: "mount", Bytes: 64 << 20, Mutable: true, Root: true, Least: 72},
	{Name: "loop-xfs", Flags: []string{"-all", "-mode=loop", "-fs-type=xfs", "-mutable=tier"}, Access: "mount", Bytes: 320 << 20, Mutable: true, Root: true, Least: 72},
	{Name: "block-all", Flags: []string{"-all", "-mode=block", "-mutable=tier"}, Access: "block", Bytes: 16 << 20, Mutable: true, Root: true, Least: 72},
	{Name: "block-nodes", Flags: []string{"-all", "-mode=loop", "-mutable=tier", "-device-nodes"}, Access: "block", Bytes: 16 << 20, Mutable: true, Root: true, Least: 72},
	{Name: "attach-limit", Flags: []string{"-all", "-mode=tmpfs", "-mutable=tier", "-max-volumes=3"}, Access: "mount", Bytes: 16 << 20, Mutable: true, AttachLimit: true, Least: 73},
	{Name: "publish-only", Flags: []string{"-node-capabilities=GET_VOLUME_STATS", minimal}, Access: "mount", Bytes: 16 << 20, Least: 32},
	{Name: "stage-only", Flags: []string{"-mode=bind", "-node-capabilities=STAGE_UNSTAGE_VOLUME", minimal}, Access: "mount", Bytes: 16 << 20, Least: 32},
	{Name: "old-capabilities", Flags: []string{
		"-node-capabilities=STAGE_UNSTAGE_VOLUME,GET_VOLUME_STATS,VOLUME_CONDITION",
		"-controller-capabilities=CREATE_DELETE_VOLUME,LIST_VOLUMES,GET_VOLUME,VOLUME_CONDITION",
	}, Access: "mount", Bytes: 16 << 20, Least: 40},
	{Name: "abort-busy", Flags: []string{"-all", "-mode=tmpfs", "-mutable=tier", "-abort-busy"}, Access: "mount", Bytes: 16 << 20, Mutable: true, Least: 72},
}

func TestMain(m *testing.M) {
	if os.Getenv(child) == "" {
		os.Exit(m.Run())
	}
	// What the driver mounts stays in this process's namespace, and ends with it.
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		fmt.Println("make mounts private:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestSanity runs the suite over each driver, in a process with mounts of its
// own.
func TestSanity(t *testing.T) {
	if os.Getenv(child) != "" {
		t.Skip("this is a child")
	}
	binary := driverBinary(t)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			if c.Root && !realRoot() {
				t.Skip("loop devices need the machine's root")
			}
			runCase(t, c, binary)
		})
	}
}

// driverBinary is the driver that CSITEST_DRIVER names, or one built from the
// module above.
func driverBinary(t *testing.T) string {
	if binary := os.Getenv(driver); binary != "" {
		return binary
	}
	binary := filepath.Join(t.TempDir(), "csitest-driver")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./csi/csitest/cmd/csitest-driver")
	build.Dir = filepath.Join("..", "..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the driver: %v\n%s", err, out)
	}
	return binary
}

func runCase(t *testing.T, c testCase, binary string) {
	spec, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCase$", "-test.v=true")
	cmd.Env = append(os.Environ(), child+"="+string(spec), driver+"="+binary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if !realRoot() {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.Process == nil {
		t.Skipf("no namespaces of its own: %v", err)
	}
	summary := ""
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "Passed") {
			summary = strings.TrimSpace(line)
		}
	}
	if err != nil {
		t.Fatalf("%v %s\n%s", err, summary, out)
	}
	t.Log(summary)
}

// TestCase is what a child runs.
func TestCase(t *testing.T) {
	text := os.Getenv(child)
	if text == "" {
		t.Skip("only for children of TestSanity")
	}
	var c testCase
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	address, stop := startDriver(t, dir, c.Flags)
	config := sanity.NewTestConfig()
	config.Address = "unix://" + address
	config.TargetPath, config.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	config.TestVolumeAccessType = c.Access
	config.TestVolumeSize, config.TestVolumeExpandSize = c.Bytes, 2*c.Bytes
	config.TestNodeVolumeAttachLimit = c.AttachLimit
	if c.Mutable {
		config.TestVolumeMutableParameters = map[string]string{"tier": "gold"}
	}
	passed := runSuite(t, config)
	stop()
	if passed < c.Least {
		t.Errorf("%d specs passed, at least %d should have: the suite has skipped the rest", passed, c.Least)
	}
	nothingLeft(t, dir)
}

// runSuite runs the suite and counts what passed.
func runSuite(t *testing.T, config sanity.TestConfig) (passed int) {
	context := sanity.GinkgoTest(&config)
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.ReportAfterSuite("count", func(r ginkgo.Report) {
		for _, s := range r.SpecReports {
			if s.LeafNodeType.String() == "It" && s.State.String() == "passed" {
				passed++
			}
		}
	})
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.NoColor = true
	ginkgo.RunSpecs(t, "csi-sanity", suite, reporter)
	context.Finalize()
	return passed
}

// startDriver starts the driver and waits until it is ready.
func startDriver(t *testing.T, dir string, flags []string) (address string, stop func()) {
	args := append([]string{"-dir=" + filepath.Join(dir, "driver"), "-name=sanity.csitest.example"}, flags...)
	cmd := exec.Command(os.Getenv(driver), args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the driver is not ready: %v", err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "ready ")), func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the driver ended: %v", err)
		}
	}
}

// nothingLeft fails if the suite or the driver has left a mount.
func nothingLeft(t *testing.T, dir string) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, dir) {
			t.Errorf("left mounted: %s", line)
		}
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.Contains(string(text), dir) {
			t.Errorf("left attached: %s %s", f, strconv.Quote(string(text)))
		}
	}
}

func realRoot() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && os.Geteuid() == 0 && strings.Join(strings.Fields(string(text)), " ") == "0 0 4294967295"
}
