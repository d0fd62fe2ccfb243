//go:build !unix

package asw

// onlyFolder has no meaning here: what is opened was listed as a folder.
const onlyFolder = 0
