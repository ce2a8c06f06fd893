"""The words of RESULTS.md that are the same whatever was measured."""

PAPERS = {
    "T16": "Tjandra et al. 2016, Gated Recurrent Neural Tensor Network",
    "S18": "Salle and Villavicencio 2018, Restricted Recurrent Neural Tensor Networks",
    "E18": "Su et al. 2018, Dependent Bidirectional RNN with Extended-LSTM",
    "H16": "Soltani 2016, Higher Order Recurrent Neural Network for Language Modeling",
}
HEAD = """# The papers' tables, run again

Every number of the papers that the recipes under [`tasks`](tasks) cover, beside ours. This page is written by
`python scripts/reproduce.py report` from [`results/rows`](results/rows) and [`tasks/*/rows.toml`](tasks).

- **Ours** is made by `python scripts/reproduce.py run NAME` (or with `--schedule long`, `medium` or `short`):
  `fairseq-train` on the training set, then `fairseq-eval-lm` or `fairseq-generate` on the test set with the checkpoint
  that validates best. Of several seeds it is the mean (lowest–highest). Each JSON behind *results* has the commands,
  the curve of a training, the machine, the versions and the commit.
- **An empty cell** was not measured. A row that was trained by several schedules has a line for each.
- **Share of the schedule**: how long ours trained, of the paper's length, or of ours where the paper prints none. What
  *paper* trained to its end can be held against the paper's number; stopped before (*partial*), it might have come
  nearer yet; by a shorter schedule it cannot be. Where a paper leaves settings open (rates, decay, epochs:
  above all H16 and T16, see [Schedules](#schedules)) all are of choices of ours.
  - *paper*, *long*, *medium*, *short*: the paper's schedule, or a shorter one that all rows that are compared have
    alike, see [Schedules](#schedules); a row's own flags, if it has any, stand beside its preset.
  - *partial*: stopped before its end; *by its rule*: ended by the paper's rule of stopping, not by a bound of ours;
    *diverged*: when it stopped, validation said more than ten times the best of before, or no number.
  - *best after* N epochs: the checkpoint that validates best, which is scored, is of then.
- **Difference** is ours less the paper's. Lower is better for perplexity, bits and time, higher for accuracy.
- **Parameters** are counted in our model."""
DAGGER = "- **†**: trained with other flags than the recipe has now ([Schedules](#schedules)); counts in claims too."
DOUBLE_DAGGER = (
    "- **‡**: trained, in part at least, with products that round what they multiply ([Schedules](#schedules))."
)
CLAIMS = """Compared are trainings by the same kind of schedule, for equally many epochs (within 1 %), or both to the
end where a rule of stopping ended one of them; and of the same seeds where there are such. Scored is the checkpoint
that validates best, which may be of an earlier epoch. Of two that the paper's schedule (a run's own flags apart)
trained for unlike lengths, compared is the best validation of either up to the last epoch that both have (*in
validation up to epoch N*), unless the claim is of whole trainings, of times or of another way of scoring. A model of
counts needs no training: what is better than it already, by whatever schedule, is better; what is not stays open until
it has been trained as in the paper. A claim about epochs is of what validation said at the ends of those that both
have, one about every epoch of two at least. A claim with ≤ or ≥ also holds where the two are equal within 0.5 %, or
within what it says: that bound, a share of the second number, is ours where a paper calls two numbers close.
The others are of any difference, however small: with one seed it may be chance. A claim of times is decided where all
rounds of the measurement say the same, the slowest of the one and the fastest of the other too. *Where*: the place in
the paper; some comparisons stand in its tables alone, not in its text. *Open*: not measured, never trained alike, not
trained to the end where that is what the claim is of, or times that are too near."""
HEADLINES = """What the papers say first, on the Penn Treebank and UD English, one comparison a line (of the basic RNN
also what E18's tables alone say); all others are under [Claims](#claims). Compare within a line, as two lines may
differ in how long their models were trained.

- **Comparison**: the first model's number is less (<) or more (>) than the second's; or (<=) not worse, or by no more
  than is said; or, without a sign, as near as is said. Perplexities on the test set (T16's characters: bits a
  character; times: over the second model's), or right labels in % (POS tagging; DP: dependency parsing). H: units, K:
  matrices of an r-RNTN, f and f_mod: S18's two ways to give words matrices, *xh*: gates that read the input and the
  state, E18's I = [x, h].
- **Trained**: both sides have one schedule and one length, unless a rule of stopping ended them (a run's own flags
  apart: T16's LSTMs with peepholes have another rate and start of AdaGrad's sum). Where the lengths differ, both
  numbers are the best of validation up to the last epoch that both have (*in validation up to epoch N*). Rates that
  are halved where validation does not improve are halved after other epochs for either side, and what is level until
  then need not be after it: that leaves H16's order of RNN, max, FOFE and the plain HORNNs open at 20 epochs
  ([notes](tasks/ptb_word_lm/notes.md#the-whole-schedule)).
- **Verdict**: whether our numbers say the same; of a shortened training, which model is ahead by then. *Trained for N
  epochs*: the same by a shorter training, which more seeds had. Any difference decides, however small. With one seed
  it may be chance: two seeds of one model, or one seed on two processors, are several points apart in E18's parsing
  ([notes](tasks/ud_dependency_parsing/notes.md)).
- **Read otherwise**: the same where what the paper leaves open is read in another way, for how many epochs that was
  trained, and the verdict. Where it was trained for fewer than the columns before it tell, the two differ in that
  too."""
SCHEDULES = """The schedules of the results above: the flags of `fairseq-train` and of the scoring command, without
data, preset and a run's own flags."""
OUTSTANDING = """The papers' models that none of our trainings took to the end of the paper's schedule (other readings
apart), and how many hours that would take: by the updates of the whole schedule and the time that one took in the
longest training of each (on a CPU, where there is one), whatever else the machine did. *Without*: what the shorter
schedule leaves out. With E18's 100 steps for every sentence an update takes about three times as long, and so would
the whole. A GPU was there for short spells only."""
