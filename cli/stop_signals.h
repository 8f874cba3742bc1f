#pragma once
#include "backend/communicator.h"

namespace weir {

// A signal of those below waits, in this process and those that it starts, until StopOnSignals: none is lost meanwhile.
void HoldStopSignals();

// Ctrl-C, a lost terminal's SIGHUP and the scheduler's SIGTERM or SIGUSR1 end a run between steps, with its weights saved. Another
// one two seconds later kills at once; sooner it is the same one again (timeout and srun signal the process and its group).
// The rank that leads answers each in a line, that of another rank in AgreedSignal.
void StopOnSignals(bool leads, bool checkpoints);
// From here on there is a step under way to finish and save: the answer says so.
void BeginSteps();

// The signal that any rank got, on all of them, or 0: they stop after the same step. Alone without a world.
int AgreedSignal(Communicator* world);

}  // namespace weir
