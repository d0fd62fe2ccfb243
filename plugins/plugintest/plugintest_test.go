package plugintest

import (
	"strings"
	"testing"

	"github.com/volumekit/volumekit/internal/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestReferenceKeepsEveryRule(t *testing.T) { TestPlugin(t, referenceHarness("")) }

// bugs names for each bug of the reference plugin the check that must find it.
func bugs() map[string]string {
	return map[string]string{
		"nameWithoutSlash":    "name",
		"supportsAll":         "foreign",
		"supportsNothing":     "supports",
		"staleTemp":           "halfSetUpAgain",
		"removesWholeOnly":    "halfSetUp",
		"onePodOnly":          "concurrent",
		"unsteadyReferences":  "references",
		"panicsOnSparse":      "sparse",
		"mutatesSpec":         "identify",
		"unsteadyIdentity":    "identify",
		"promisesDevice":      "storage",
		"unclassedRefusal":    "bad",
		"noMount":             "promise",
		"notIdempotent":       "repeat",
		"stacks":              "repeat",
		"destroysOnAgain":     "keep",
		"takesFolderForMount": "reboot",
		"mutatesPod":          "requests",
		"ignoresContext":      "ended",
		"leaksSecret":         "secrets",
		"versionIsSecret":     "secrets",
		"forgetsTarget":       "remove",
		"forgetsPrivate":      "remove",
		"failsWhereNothingIs": "removeTwice",
		"memory":              "removeLater",
		"throughMounts":       "neverThrough",
		"claimsClean":         "classes",
		"swallows":            "halfTearDown",
		"tearsDownOthers":     "pods",
		"rewrites":            "refreshNothing",
		"forgetsChange":       "refreshChange",
		"tornRefresh":         "refreshFails",
	}
}

// TestBrokenPlugins proves that each check can fail: each plugin has one bug,
// which the check that is meant for it must find.
func TestBrokenPlugins(t *testing.T) {
	for bug, want := range bugs() {
		t.Run(bug, func(t *testing.T) {
			found := false
			for _, c := range checks() {
				if c.name != want {
					continue
				}
				for _, f := range c.run(t, referenceHarness(bug)) {
					found = true
					if f.check != want || f.rule == "" || !strings.Contains(f.String(), f.rule) {
						t.Errorf("a failure does not name its rule: %v", f)
					}
				}
			}
			if !found {
				t.Errorf("check %s does not find it", want)
			}
		})
	}
}

func TestEveryCheckHasNameRuleAndProof(t *testing.T) {
	names, rules, proven := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, check := range bugs() {
		proven[check] = true
	}
	for _, c := range checks() {
		if c.name == "" || c.rule == "" || names[c.name] || rules[c.rule] {
			t.Errorf("check %q, rule %q", c.name, c.rule)
		}
		names[c.name], rules[c.rule] = true, true
		if !proven[c.name] {
			t.Errorf("no broken plugin proves that check %s can fail", c.name)
		}
		if c.once == nil && c.good == nil && c.bad == nil {
			t.Errorf("check %s tries nothing", c.name)
		}
	}
}
