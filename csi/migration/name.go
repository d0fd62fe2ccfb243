package migration

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/volumekit/volumekit/plugins"
)

// folderName turns the name that the library gives to an inline volume into
// one that can be a folder's, by the rule in the package comment. It is
// injective for the names of one driver: what is escaped holds no "~~", and
// what is hashed does.
func folderName(driver, name string) string {
	if !strings.Contains(name, "~") && !strings.Contains(name, "//") {
		if folder := plugins.EscapePlugin(name); plugins.CheckName(folder) == nil {
			return folder
		}
	}
	sum := sha256.Sum256([]byte(name))
	return driver + "~~" + hex.EncodeToString(sum[:])
}
