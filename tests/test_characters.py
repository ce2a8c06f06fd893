"""Encoders of a word's characters."""

import pytest
import torch

from rntn_plugins.layers.characters import LONG, CharacterConvolution, CharacterLSTM

PAD = 1
ENCODERS = {
    "convolution": lambda: CharacterConvolution(symbols=12, pad=PAD, embed_dim=3, size=4, width=3),
    "lstm": lambda: CharacterLSTM(symbols=12, pad=PAD, embed_dim=3, size=4),
}


def words(*lengths):
    torch.manual_seed(1)
    return [torch.randint(4, 12, (length,)) for length in lengths]


@pytest.mark.parametrize("name", ENCODERS)
def test_a_word_is_the_same_beside_any_other(name):
    torch.manual_seed(0)
    encoder = ENCODERS[name]().double()
    some = words(1, 5, 2, LONG, LONG + 1, 3 * LONG, 5)
    padded = torch.nn.utils.rnn.pad_sequence([*some, some[1]], batch_first=True, padding_value=PAD)
    together = encoder(padded.view(2, 4, -1))
    assert together.shape == (2, 4, 4)
    for word, found in zip([*some, some[1]], together.view(8, 4)):
        torch.testing.assert_close(encoder(word.unsqueeze(0))[0], found, rtol=0, atol=1e-12)
    assert together.view(8, 4).std(0).min() > 0.01


@pytest.mark.parametrize("name", ENCODERS)
def test_nothing_is_zero_and_all_learns(name):
    encoder = ENCODERS[name]()
    characters = torch.full((2, 2, 3), PAD)
    characters[0, 0] = torch.tensor([4, 5, 6])
    found = encoder(characters)
    assert found[0, 0].abs().min() > 0 and found[0, 1].abs().max() == found[1].abs().max() == 0
    found.sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in encoder.parameters())
    assert encoder(torch.full((1, 2, 1), PAD)).abs().max() == 0


@pytest.mark.parametrize("name", ENCODERS)
def test_padding_is_zero_and_stays_it(name):
    encoder = ENCODERS[name]()
    encoder(torch.tensor([[4, 5, PAD], [6, PAD, PAD]])).sum().backward()
    assert not encoder.embed.weight[PAD].any() and not encoder.embed.weight.grad[PAD].any()


@pytest.mark.parametrize("name", ENCODERS)
def test_an_endless_word_does_not_widen_the_others(name, monkeypatch):
    encoder, shapes = ENCODERS[name](), []
    encode = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda some, lengths: shapes.append(some.shape) or encode(some, lengths))
    some = words(3, 5, LONG, 4 * LONG)
    encoder(torch.nn.utils.rnn.pad_sequence(some, batch_first=True, padding_value=PAD))
    encoder(torch.nn.utils.rnn.pad_sequence(some[:2], batch_first=True, padding_value=PAD))
    assert shapes == [(3, LONG), (1, 4 * LONG), (2, 5)]


def test_lstm_puts_out_the_last_states_of_both_directions():
    torch.manual_seed(0)
    encoder = CharacterLSTM(symbols=12, pad=PAD, embed_dim=3, size=4)
    word = words(5)[0]
    outputs, _ = encoder.lstm(encoder.embed(word).unsqueeze(0))
    expected = torch.cat([outputs[0, -1, :2], outputs[0, 0, 2:]])
    torch.testing.assert_close(encoder(torch.nn.functional.pad(word, (0, 3), value=PAD)), expected)


def test_lstm_needs_an_even_size():
    with pytest.raises(ValueError, match="--char-filters 5 must be even"):
        CharacterLSTM(symbols=12, pad=PAD, embed_dim=3, size=5)
