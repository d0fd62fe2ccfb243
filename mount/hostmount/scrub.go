package hostmount

import (
	"strings"

	"github.com/volumekit/volumekit/mount"
)

// scrub takes the values of sensitive options out of a text that came from the
// kernel or from a program.
func scrub(text string, o mount.Options) string {
	for _, word := range o.Sensitive {
		text = strings.ReplaceAll(text, word, "[hidden]")
		if _, value, _ := strings.Cut(word, "="); strings.Trim(value, `"`) != "" {
			text = strings.ReplaceAll(text, strings.Trim(value, `"`), "[hidden]")
		}
	}
	return text
}
