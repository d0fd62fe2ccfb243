package journal

// Sum is the checksum of a line, for lines made by hand.
func Sum(text string) string { return string(appendSum(nil, []byte(text))) }

// DataSync is the sync that the journal uses.
var DataSync = dataSync
