"""What torch says of a backward pass while it goes on."""

import torch

#: Whether it was asked to keep the graph; where torch does not say, it may have been.
graph_is_kept = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
