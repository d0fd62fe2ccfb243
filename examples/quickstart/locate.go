package main

import (
	"fmt"
	"strconv"
	"strings"
)

// path names a place in a document: the keys on the way, and "[n]" for the
// elements of lists.
type path []string

func index(i int) string { return fmt.Sprintf("[%d]", i) }

// String writes it as Kubernetes does: spec.volumes[0].name.
func (p path) String() string {
	var b strings.Builder
	for _, elem := range p {
		if b.Len() > 0 && !strings.HasPrefix(elem, "[") {
			b.WriteByte('.')
		}
		b.WriteString(elem)
	}
	return b.String()
}

// parsePath reads what String writes. A key with dots in it becomes several.
func parsePath(text string) (p path) {
	for elem := range strings.SplitSeq(text, ".") {
		for elem != "" {
			cut := strings.IndexByte(elem, '[')
			if cut == 0 {
				cut = strings.IndexByte(elem, ']') + 1
			}
			if cut <= 0 {
				cut = len(elem)
			}
			p, elem = append(p, elem[:cut]), elem[cut:]
		}
	}
	return p
}

// in returns what stands at the place, nil if there is nothing.
func (p path) in(node any) any {
	for _, elem := range p {
		switch n := node.(type) {
		case map[string]any:
			node = n[elem]
		case []any:
			i, err := strconv.Atoi(strings.Trim(elem, "[]"))
			if err != nil || i < 0 || i >= len(n) {
				return nil
			}
			node = n[i]
		default:
			return nil
		}
	}
	return node
}

// locate finds the line, counted from 0, on which a place in a YAML or JSON
// text stands, or the nearest one around it. It is made for error messages:
// where the text is unusual it finds less, and never fails.
func locate(text string, p path) int {
	r := region{text, 0, len(text)}
	found := r.start()
	for _, elem := range p {
		if key, inner, ok := r.find(elem); ok {
			found, r = key, inner
		}
	}
	return strings.Count(text[:found], "\n")
}

// region is the part of a text that holds one value.
type region struct {
	text     string
	from, to int
}

// start is where the value begins: what is neither space nor comment.
func (r region) start() int {
	for i := r.from; i < r.to; i++ {
		switch r.text[i] {
		case ' ', '\t', '\r', '\n':
		case '#':
			for i < r.to && r.text[i] != '\n' {
				i++
			}
		default:
			return i
		}
	}
	return min(r.from, len(r.text))
}

// find looks for a key, or an element of a list, right inside the value.
func (r region) find(elem string) (key int, inner region, ok bool) {
	start := r.start()
	if start < r.to && (r.text[start] == '{' || r.text[start] == '[') {
		return r.flow(start, elem)
	}
	return r.block(start, elem)
}

// block looks among lines that are indented as much as the first one.
func (r region) block(start int, elem string) (key int, inner region, ok bool) {
	column := start - (strings.LastIndexByte(r.text[:start], '\n') + 1)
	nth, isList := elementNumber(elem)
	for at := start; at < r.to; {
		end := r.lineEnd(at)
		rest := r.text[at:end]
		switch {
		case isList && strings.HasPrefix(rest, "-"):
			if nth == 0 {
				return at, region{r.text, at + 1, r.nextAt(end, column, false)}, true
			}
			nth--
		case !isList:
			if n := keyLength(rest, elem); n > 0 {
				return at, region{r.text, at + n, r.nextAt(end, column, true)}, true
			}
		}
		at = r.nextAt(end, column, !isList)
	}
	return 0, r, false
}

// nextAt finds the next line that is indented by no more than column. The
// elements of a list may be indented as little as their key: inKey skips them.
func (r region) nextAt(at, column int, inKey bool) int {
	for at < r.to {
		end := r.lineEnd(at)
		rest := strings.TrimLeft(r.text[at:end], " ")
		indent := end - at - len(rest)
		switch {
		case strings.TrimSpace(rest) == "" || rest[0] == '#' || indent > column:
		case indent < column:
			return r.to
		case !inKey || rest[0] != '-':
			return at + indent
		}
		at = end
	}
	return r.to
}

func (r region) lineEnd(at int) int {
	if n := strings.IndexByte(r.text[at:r.to], '\n'); n >= 0 {
		return at + n + 1
	}
	return r.to
}

// keyLength is the length of key and colon at the beginning of a line, 0 if
// another key stands there.
func keyLength(line, key string) int {
	for _, form := range []string{key, strconv.Quote(key), "'" + key + "'"} {
		if rest, ok := strings.CutPrefix(line, form); ok {
			if after, ok := strings.CutPrefix(strings.TrimLeft(rest, " "), ":"); ok {
				return len(line) - len(after)
			}
		}
	}
	return 0
}

// flow looks in a value in braces or brackets.
func (r region) flow(start int, elem string) (key int, inner region, ok bool) {
	nth, isList := elementNumber(elem)
	depth, fresh := 0, false // fresh: an entry begins here
	for i := start; i < r.to; i++ {
		c := r.text[i]
		if fresh && depth == 1 && !strings.ContainsRune(" \t\r\n", rune(c)) {
			fresh = false
			if isList && nth == 0 {
				return i, region{r.text, i, r.to}, true
			}
			nth--
			if n := keyLength(r.text[i:r.to], elem); n > 0 && !isList {
				return i, region{r.text, i + n, r.to}, true
			}
		}
		switch c {
		case '{', '[':
			depth++
			fresh = depth == 1
		case '}', ']':
			if depth--; depth == 0 {
				return 0, r, false
			}
		case ',':
			fresh = depth == 1
		case '"', '\'':
			i = quoteEnd(r.text, i, r.to)
		}
	}
	return 0, r, false
}

// quoteEnd is the last byte of a quoted text that begins at i.
func quoteEnd(text string, i, to int) int {
	quote := text[i]
	for i++; i < to; i++ {
		switch {
		case text[i] == '\\' && quote == '"':
			i++
		case text[i] == quote:
			return i
		}
	}
	return to
}

func elementNumber(elem string) (n int, isList bool) {
	n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(elem, "["), "]"))
	return n, err == nil && strings.HasPrefix(elem, "[")
}
