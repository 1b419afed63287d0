class ModelNew(nn.Module):
    """cross_entropy(head(hidden), labels) of a linear layer without bias: a language model's loss.

    What torch.nn.functional.cross_entropy gives, and of its type, of hidden states [N, K] and labels [N] of type int64:
    the mean over the labels that are not -100. Logits are there for one chunk of rows at a time. The state is that of a
    module with head = nn.Linear(width, vocabulary, bias=False): the same seed gives the same numbers, and a state_dict
    goes both ways. If head is hooked, parametrized or replaced, it is called as the module it is.
    """

    def __init__(self, width, vocabulary):
        super().__init__()
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, hidden, labels):
        return _onepass(hidden).linear_cross_entropy_of(hidden, self.head, labels)
