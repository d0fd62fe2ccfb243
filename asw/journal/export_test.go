package journal

import "runtime"

// Sum is the checksum of a line, for lines made by hand.
func Sum(text string) string { return string(appendSum(nil, []byte(text))) }

// DataSync is the sync that the journal uses.
var DataSync = dataSync

// AwaitGathered returns once so many changes wait to be written.
func AwaitGathered(j *Journal, n int) {
	for {
		j.mu.Lock()
		waiting := 0
		if j.batch != nil {
			for _, c := range j.batch.changes {
				if !c.left {
					waiting++
				}
			}
		}
		j.mu.Unlock()
		if waiting == n {
			return
		}
		runtime.Gosched()
	}
}
