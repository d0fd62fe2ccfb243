package projection_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/projection"
)

// A folder is brought from one content to the next. Who reads it finds either
// the whole old or the whole new one.
func ExampleWriter() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	root, err := os.OpenRoot(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = root.Close() }()

	writer := &projection.Writer{Root: root}
	for _, content := range []map[string]string{
		{"colour": "red", "shape/kind": "round"},
		{"colour": "blue", "shape/kind": "round"},
		{"colour": "blue", "shape/kind": "round"},
	} {
		tree := &projection.Tree{}
		for name, text := range content {
			if err := tree.Add(name, projection.File{Data: []byte(text), Mode: 0o644, Source: "example"}); err != nil {
				fmt.Println(err)
			}
		}
		result, err := writer.Write(context.Background(), tree)
		fmt.Println(result.Changed, result.Wrote, err)
	}
	colour, err := os.ReadFile(filepath.Join(dir, "colour"))
	fmt.Println(string(colour), err)
	// Output:
	// [colour shape/kind] true <nil>
	// [colour] true <nil>
	// [] false <nil>
	// blue <nil>
}
